"""The workers meet, within the time limit whatever the others do, and say what is not the same."""

import json
import os
import re
import socket
import threading
from collections.abc import Sequence

import pytest
import torch.distributed as dist

from benchmarks.ports import free_port
from relaxcomm.doctor import interfaces, peers
from relaxcomm.system.time_limit import within
from tests.ranks import launch_script


def report(host: str = "a", address: str = "192.0.2.7", findings: tuple = (), **versions: str) -> dict:
    same = {"relaxcomm": "1", "torch": "2", "python": "3"}
    return {"host": host, "address": address, "findings": list(findings), "versions": {**same, **versions}}


@pytest.mark.parametrize(
    ("reports", "level", "says"),
    [
        ({0: report(), 1: report()}, "ok", "rank 1 on a (192.0.2.7)"),
        ({0: report()}, "problem", "no word from rank 1 within 5 s; here: rank 0 on a"),
        ({0: report(address="127.0.0.1"), 1: report(address="127.0.0.1")}, "ok", "rank 0"),
        ({0: report(), 1: report("b", "127.0.1.1")}, "problem", "other hosts cannot reach"),
        ({0: report(), 1: report("b", "192.0.2.8")}, "ok", "rank 1 on b (192.0.2.8)"),
    ],
)
def test_meeting(reports, level, says):
    found = peers._meeting(reports, 2, 5)
    assert found.level == level
    assert says in found.text


def test_rank_0_whose_name_is_a_loopback_at_home_takes_the_address_that_others_tell(monkeypatch):
    """It said that others cannot reach it, and looked at the loopback, although attach() does as here."""
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node-0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(None, None, None, None, ("127.0.1.1", 0))])
    monkeypatch.setattr(peers, "use_interface_of", (used := []).append)
    monkeypatch.setattr(peers.link_speed, "findings", lambda *_: [])
    store = dist.HashStore()
    store.set("report/1", json.dumps({**report("b", "10.0.0.4"), "master": "10.0.0.3"}))
    mine = peers._report((), is_told=interfaces.is_told_by_others())
    meeting, *_ = peers._meet(store, 0, mine, 2, 5.0, stays=False)
    assert used == ["10.0.0.3"]
    assert (meeting.level, "(10.0.0.3), rank 1 on b (10.0.0.4)" in meeting.text) == ("ok", True)
    gloo = [(one.level, one.remedy) for one in interfaces.findings() if one.name == "gloo"]
    assert gloo == [("ok", "")]


def test_versions_that_differ():
    reports = {0: report(), 1: report(torch="2.1", python="3.1"), 2: report()}
    found = {one.name: (one.level, one.text) for one in peers._differences(reports)}
    assert found == {
        "torch": ("problem", "2 on rank 0, 2; 2.1 on rank 1"),
        "python": ("warning", "3 on rank 0, 2; 3.1 on rank 1"),
    }


def test_what_is_wrong_elsewhere_is_said_once():
    mine = {"name": "cores", "level": "warning", "text": "few", "remedy": ""}
    theirs = {"name": "gpus", "level": "problem", "text": "none", "remedy": "buy one"}
    reports = {
        0: report(findings=(mine,)),
        1: report("b", findings=(mine, theirs)),
        2: report(findings=(theirs,)),
    }
    (found,) = peers._others(reports, 0)
    assert (found.name, found.level, found.text, found.remedy) == (
        *("gpus", "problem", "rank 1 on b: none", "buy one"),
    )


def test_within():
    assert within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        within(5, lambda: {}["a"])
    stop = threading.Event()
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        within(0.1, stop.wait)
    stop.set()


def doctors(
    ranks: Sequence[int], ports: Sequence[int], timeout: float
) -> list[tuple[int | None, dict[str, str], str]]:
    """Exit code, lines and errors of some of three ranks, each with the port where rank 0 is to be."""
    places = [
        {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for rank, port in zip(ranks, ports, strict=True)
    ]
    main = "from relaxcomm.cli import main; main()"
    arguments = ["doctor", "--timeout", str(timeout)]
    return [
        (done.returncode, dict(line.split("  ", 1) for line in done.stdout.splitlines()), done.stderr)
        for done in launch_script(main, len(ranks), arguments=arguments, environments=places)
    ]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("TORCHELASTIC", "GLOO_"))]:
        monkeypatch.delenv(name)


@pytest.mark.ranks
def test_three_workers_and_their_links():
    (code, found, err), *others = doctors(range(3), [free_port()] * 3, 120)
    assert (code, err) == (0, "")
    assert found["workers"].startswith("ok: rank 0 on ")
    assert found["latency"].startswith("ok: gloo: all-reduce of 4 B in ")
    assert re.search(r", each worker sends [\d.]+ [kMG]bit/s; ", found["bandwidth"])
    assert [other[:2] for other in others] == [(0, {})] * 2, "rank 0 speaks for all"


@pytest.mark.ranks
def test_nobody_hangs_when_a_peer_is_missing():
    port = free_port()
    # Rank 2 never comes; rank 1 of another job finds no master.
    here, there, lost = doctors([0, 1, 1], [port, port, free_port()], 8)
    code, found, err = here
    assert (code, err) == (1, "")
    assert found["workers"].startswith("problem: no word from rank 2 within 8 s; here: rank 0 on ")
    assert "latency" not in found
    assert there[0] == 0
    code, found, err = lost
    assert (code, list(found), err) == (1, ["master"], "")
    assert "rank 1 cannot reach 127.0.0.1:" in found["master"]


@pytest.mark.slow
@pytest.mark.ranks
def test_nobody_hangs_when_another_program_holds_the_port():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (code, found, _), other = doctors([0, 1], [port] * 2, 15)
        assert (code, found["master"].split(";")[0]) == (1, f"problem: port {port} is taken on this machine")
        code, found, err = other
    assert (code, err) == (1, "")
    assert "does another program hold that port?" in found["master"]


@pytest.mark.parametrize(("local", "says"), [("1", "--local-addr"), ("2", "firewall")])
def test_a_master_that_is_this_host_is_told_where_workers_are_on_several(monkeypatch, local, says):
    places = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**places, "LOCAL_WORLD_SIZE": local}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(peers, "_answers", lambda *asked: False)
    (one,) = peers.findings((), 1.0)
    assert says in one.remedy

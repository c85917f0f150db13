"""Which interface gloo takes, and what is wrong with it."""

import socket

import psutil
import pytest

from benchmarks.ports import free_port
from relaxcomm.doctor import interfaces
from relaxcomm.system import network_interface
from relaxcomm.system.environment import MEETING_VARIABLES
from relaxcomm.system.network_interface import resolve
from tests.ranks import launch_script

INTERFACES = {"lo": "127.0.0.1", "eth0": "192.0.2.7", "eth1": "198.51.100.7", "down0": "203.0.113.7"}


@pytest.fixture
def machine(monkeypatch):
    """A machine of these interfaces, whose name resolves to the addresses given."""

    def made(resolved: list[str], variables: dict[str, str] | None = None) -> None:
        for name in ("GLOO_SOCKET_IFNAME", *MEETING_VARIABLES, "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (variables or {}).items():
            monkeypatch.setenv(name, value)
        real = psutil.net_if_addrs()["lo"][0]
        state = psutil.net_if_stats()["lo"]
        addresses = {
            name: [real._replace(family=socket.AF_INET, address=one)] for name, one in INTERFACES.items()
        }
        states = {name: state._replace(isup=name != "down0", speed=0) for name in INTERFACES}
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
        monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
        monkeypatch.setattr(socket, "gethostname", lambda: "host")
        monkeypatch.setattr(interfaces, "resolve", lambda host: resolved if host == "host" else [])

    return made


def found(name: str) -> list[tuple[str, str, str]]:
    return [(one.level, one.text, one.remedy) for one in interfaces.findings() if one.name == name]


@pytest.mark.parametrize(
    ("resolved", "wanted", "takes", "level", "says"),
    [
        (["198.51.100.7"], None, ("eth1", "198.51.100.7"), "ok", ""),
        (["192.0.2.99", "192.0.2.7"], None, ("eth0", "192.0.2.7"), "ok", ""),  # the first is not ours
        (["127.0.0.1"], None, ("lo", "127.0.0.1"), "warning", "GLOO_SOCKET_IFNAME=eth0"),
        ([], None, ("lo", "127.0.0.1"), "warning", "GLOO_SOCKET_IFNAME=eth0"),
        (["203.0.113.7"], None, ("lo", "127.0.0.1"), "warning", "GLOO_SOCKET_IFNAME=eth0"),
        (["127.0.0.1"], "eth1", ("eth1", "198.51.100.7"), "ok", ""),
        (["192.0.2.7"], "down0", ("down0", ""), "problem", "lo, eth0, eth1"),
        (["192.0.2.7"], "ib0", ("ib0", ""), "problem", "lo, eth0, eth1"),
    ],
)
def test_gloo(machine, resolved, wanted, takes, level, says):
    machine(resolved, {"GLOO_SOCKET_IFNAME": wanted} if wanted else None)
    assert interfaces.gloo_address() == takes
    ((got, text, remedy),) = found("gloo")
    assert (got, says in remedy) == (level, True)
    assert takes[0] in text


def test_gloo_takes_the_way_to_the_other_hosts_as_attach_does(machine, monkeypatch):
    machine(["127.0.1.1"], {"MASTER_ADDR": "host", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"})
    monkeypatch.setattr(interfaces, "address_towards", lambda host: "198.51.100.7")
    assert interfaces.gloo_address() == ("eth1", "198.51.100.7")
    assert found("gloo") == [("ok", "takes eth1, 198.51.100.7, because of the way to MASTER_ADDR", "")]


@pytest.mark.parametrize(("local", "level"), [("1", "warning"), ("2", "ok")])
def test_a_loopback_master_is_right_on_one_host(machine, monkeypatch, local, level):
    machine(["192.0.2.7"], {"MASTER_ADDR": "host", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": local})
    monkeypatch.setattr(interfaces, "address_towards", lambda host: "127.0.0.1")
    assert [one for one, _, _ in found("gloo")] == [level]


def test_interfaces_that_are_up_are_listed(machine):
    machine(["192.0.2.7"])
    assert [text.split(":")[0] for _, text, _ in found("interface")] == ["lo", "eth0", "eth1"]


def test_master(machine):
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        machine(["192.0.2.7"], {"MASTER_PORT": port})
        assert [level for level, _, _ in found("master")] == ["warning"]
        machine(["192.0.2.7"], {"MASTER_PORT": port, "MASTER_ADDR": "host", "RANK": "0"})
        assert [level for level, _, _ in found("master")] == ["problem"]
        machine(["192.0.2.7"], {"MASTER_PORT": port, "MASTER_ADDR": "host", "RANK": "1"})
        assert found("master") == []  # another machine's port
    machine(["192.0.2.7"], {"MASTER_PORT": str(free_port())})
    assert [level for level, _, _ in found("master")] == ["ok"]
    machine(["192.0.2.7"], {"MASTER_ADDR": "nowhere"})
    assert found("master")[0][:2] == ("problem", "MASTER_ADDR=nowhere is not known")


def test_variables_that_no_launcher_sets_end_no_diagnosis(machine, monkeypatch):
    """Where MASTER_ADDR is a loopback at home, it ended in their ConfigError, which another finding tells."""
    machine(["127.0.1.1"], {"MASTER_ADDR": "host", "WORLD_SIZE": "some"})
    monkeypatch.setattr(network_interface, "resolve", interfaces.resolve)
    assert [level for level, _, _ in found("gloo")] == ["warning"]


def test_names():
    assert resolve("localhost")
    assert resolve("no-such-host.invalid") == []
    assert [interfaces.is_loopback(one) for one in ("127.0.1.1", "::1", "192.0.2.7")] == [True, True, False]


@pytest.mark.ranks
@pytest.mark.parametrize("wanted", ["", "lo"])
def test_gloo_listens_where_we_say(wanted):
    """Against gloo itself: the address of the socket that it opens."""
    source = f"""
import os, psutil, torch.distributed as dist
del os.environ["MASTER_ADDR"]
if {wanted!r}:
    os.environ["GLOO_SOCKET_IFNAME"] = {wanted!r}
before = {{one.laddr for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"}}
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
after = {{one.laddr for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"}}
from relaxcomm.doctor.interfaces import gloo_address
print({{one.ip for one in after - before}} == {{gloo_address()[1]}}, after - before, gloo_address())
"""
    (done,) = launch_script(source, 1)
    assert done.stdout.startswith("True"), done.stdout + done.stderr

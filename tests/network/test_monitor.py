"""Operations that the host does not wait for end all the same: on a pretended GPU, in real processes."""

from __future__ import annotations

import json
import time

import pytest
import torch

from relaxcomm.errors import CommunicationError
from relaxcomm.network.operations import AllReduce, Label, Neighbors
from tests.network import pretended_nccl
from tests.network.pretended_nccl import Connected, Stuck, Unreachable, pretended
from tests.ranks import launch_script, run_ranks

pytestmark = pytest.mark.ranks

DYING = """
import json, os, signal, sys, time
sys.path.insert(0, ".")
import torch
from relaxcomm.network.default_group import make_default_group
from tests.network import pretended_nccl
from tests.network.test_monitor import KINDS, issue_until_told

rank = int(os.environ["RANK"])
make_default_group(60)
with pretended_nccl.pretended(KINDS[KIND]):
    transport = pretended_nccl.transport(60)
    transport.meet("the beginning")
    if rank == 1:
        if KIND != "unreachable":
            issue_until_told(transport, most=1)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    kind, said = issue_until_told(transport)
    seconds = time.monotonic() - begin
    transport.close()
    time.sleep(0.5)  # in which what was given up is ended
    print(json.dumps([kind, said, seconds, pretended_nccl.calls]), flush=True)
    os._exit(0)  # without the groups' threads
"""
KINDS = {"stuck": Stuck, "unreachable": Unreachable, "connected": Connected}
"""Where nothing is reported, where not even a group comes about, and where the connection breaks."""


def issue_until_told(transport, most: int = 1000):
    """Issue as a training loop does, which never waits on the host; the error's name and words."""
    try:
        for step in range(most):
            transport.issue(AllReduce(torch.ones(2), "sum"), Label(step, "0")).wait()
            time.sleep(0.05)
    except CommunicationError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_was_killed_is_named_within_seconds(kind):
    done = launch_script(f"KIND = {kind!r}\n{DYING}", 3, never_end={1})
    for rank, one in zip((0, 2), done, strict=True):
        assert one.returncode == 0, one.stderr
        name, said, seconds, calls = json.loads(one.stdout.splitlines()[-1])
        assert name == "RankLostError"
        assert f"rank {rank} at step {int(kind != 'unreachable')}, rule 0" in said
        assert "rank 1 has ended without a message" in said
        assert seconds < 5
        assert calls[-1] == "abort operations"
        assert not [call for call in calls if call.startswith("shutdown")]


def waits_in_vain(rank, ending: str):
    """What a rank is told of operations that never end, after how long, and what it did to the groups."""
    with pretended(Stuck):
        transport = pretended_nccl.transport(3)
        swap = Neighbors({}, {})
        transport.issue(swap, Label(0, "gossip")).wait()  # so that there are two groups
        transport.issue(AllReduce(torch.ones(2), "sum"), Label(0, "0")).wait()
        transport.meet("the beginning")
        begin = time.monotonic()
        pending = transport.issue(AllReduce(torch.ones(2), "sum"), Label(7, "0"))
        pending.wait()
        passed = time.monotonic() - begin
        told = {}
        while "issue" not in told and time.monotonic() - begin < 20 and ending != "close":
            time.sleep(0.05)
            try:
                transport.issue(swap, Label(8, "gossip")).wait()
            except CommunicationError as error:
                told["issue"] = type(error).__name__, str(error)
        seconds = time.monotonic() - begin
        for name, call in {
            "wait": pending.wait,
            "arrived": pending.arrived,
            "meet": lambda: transport.meet("the end"),
            "close": lambda: (time.sleep(5 if ending == "close" else 0), transport.close()),
        }.items():
            if ending == name or ending == "all":
                try:
                    call()
                except CommunicationError as error:
                    told[name] = type(error).__name__, str(error)
        while (
            sum(call.startswith("abort") for call in pretended_nccl.calls) < 2
            and time.monotonic() - begin < 20
        ):
            time.sleep(0.05)  # the error is told first
        return passed, seconds, told, pretended_nccl.calls


def test_an_operation_that_takes_too_long_is_an_error_of_all_that_follows():
    for rank, (passed, seconds, told, calls) in enumerate(run_ranks(waits_in_vain, 2, "all")):
        assert passed < 3  # the host goes on
        assert 3 <= seconds < 3 + 5
        assert f"rank {rank} at step 7, rule 0" in told["issue"][1]
        assert told["issue"][1] == told["wait"][1] == told["arrived"][1]
        assert "not complete after 3 s (timeout_seconds)" in told["issue"][1]
        assert "close" not in told  # it was told already
        assert "meet" in told
        assert sorted(calls[-2:]) == ["abort neighbors", "abort operations"]
        assert not [call for call in calls if call.startswith("shutdown")]


def test_who_was_not_told_learns_it_when_the_transport_is_closed():
    for rank, (_, _, told, calls) in enumerate(run_ranks(waits_in_vain, 2, "close")):
        _, said = told["close"]
        assert f"rank {rank} at step 7, rule 0" in said
        assert sorted(calls[-2:]) == ["abort neighbors", "abort operations"]


def closes_beside_a_slow_abort(rank):
    """How long a rank is told nothing by `close`, where NCCL does not come back from an abort."""
    with pretended(Stuck), pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stuck, "abort", lambda group: time.sleep(20))
        transport = pretended_nccl.transport(3)
        name, _ = issue_until_told(transport)
        begin = time.monotonic()
        transport.close()
        return name, time.monotonic() - begin


def test_nobody_waits_for_an_abort_that_is_slow():
    for name, seconds in run_ranks(closes_beside_a_slow_abort, 2):
        assert name == "RankLostError"
        assert seconds < 4


def sees_an_error(rank, most):
    """NCCL itself reports an error on rank 0, where operations end up to the one with number `most`."""
    with pretended(Stuck), pytest.MonkeyPatch.context() as patched:
        transport = pretended_nccl.transport(30)
        if rank == 0:
            patched.setattr(Stuck, "error", "REMOTE_ERROR")
            patched.setattr(Stuck, "ending", most)
        begin = time.monotonic()
        name, said = issue_until_told(transport)
        transport.close()
        return name, said, time.monotonic() - begin


@pytest.mark.parametrize("most", [1, 1000], ids=["never ends", "ends with it"])
def test_what_nccl_reports_is_an_error_of_all_ranks(most):
    (_, zero, first), (_, one, second) = run_ranks(sees_an_error, 2, most)
    assert "NCCL reports REMOTE_ERROR on the group for operations" in zero
    assert "rank 0 failed" in one
    assert max(first, second) < 6


def fails_on_the_host(rank):
    """Rank 1 ends with an error of its own, of which others are told; closing raises nothing more there."""
    with pretended(Stuck):
        transport = pretended_nccl.transport(30)
        transport.issue(AllReduce(torch.ones(2), "sum"), Label(0, "0")).wait()
        transport.meet("the beginning")
        if rank == 1:
            transport.announce("failed: KeyError: 'mine'")
            transport.close()
            return "nothing", ""
        told = issue_until_told(transport)
        transport.close()
        return told


def test_an_error_of_a_rank_of_its_own_is_told_to_the_others():
    (name, said), (nothing, _) = run_ranks(fails_on_the_host, 2)
    assert (name, nothing) == ("RankLostError", "nothing")
    assert "rank 1 failed: KeyError: 'mine'" in said

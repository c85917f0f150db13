"""Every operation means the same on Gloo processes and on in-process ranks."""

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from relaxcomm import simulate
from relaxcomm.network import TorchTransport, waiting
from relaxcomm.network.operations import Agree, AllGather, AllReduce, AllToAll, Broadcast, Label, Neighbors
from tests.ranks import PATIENCE_SECONDS, run_ranks

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def exchange(transport):
    """All operations once, as lists of numbers, and the bytes that were counted."""
    me, size = transport.membership.rank, transport.membership.world_size
    row, right, left = torch.arange(4.0) + 10 * me, (me + 1) % size, (me - 1) % size
    operations = {
        "sum": AllReduce(row.clone(), "sum"),
        "max": AllReduce(row.clone(), "max"),
        "empty": AllReduce(torch.empty(0), "mean"),
        "gather": AllGather(row.clone()),
        "all_to_all": AllToAll(torch.stack([row + 100 * peer for peer in range(size)])),
        "broadcast": Broadcast(row.clone(), root=1),
        "agree": Agree(torch.tensor([float(me)]), "max"),
    }
    operations |= {str(d): AllReduce(row.to(d, copy=True), "mean") for d in DTYPES}
    pending = {
        name: transport.issue(op, Label(0, name, unit)) for unit, (name, op) in enumerate(operations.items())
    }
    found = {name: one.wait().tolist() for name, one in pending.items()}
    ring = Neighbors({right: row}, {left: torch.empty(4)})
    found["ring"] = {peer: t.tolist() for peer, t in transport.issue(ring, Label(0, "ring")).wait().items()}
    return found, transport.counters.sent, transport.counters.received, transport.gather_objects(me, "a test")


def on_gloo(rank):
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="auto", timeout_seconds=20, debug=rank < 0
    )
    try:
        return exchange(transport)
    finally:
        transport.close()


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 3])
def test_both_transports_agree(size, debug):
    assert run_ranks(on_gloo, size, debug=debug) == simulate(lambda group: exchange(group.transport()), size)


def test_results_are_right():
    found, _, _, everyone = simulate(lambda group: exchange(group.transport()), 3)[1]
    assert found["sum"] == [30.0, 33.0, 36.0, 39.0]
    assert found["max"] == [20.0, 21.0, 22.0, 23.0]
    assert found["gather"][2] == [20.0, 21.0, 22.0, 23.0]
    assert found["all_to_all"][2] == [120.0, 121.0, 122.0, 123.0]
    assert found["broadcast"] == [10.0, 11.0, 12.0, 13.0]
    assert (found["agree"], found["empty"], found["ring"]) == ([2.0], [], {0: [0.0, 1.0, 2.0, 3.0]})
    assert everyone == [0, 1, 2]


def disagree(rank, debug_labels):
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="gloo", timeout_seconds=5, debug=debug_labels
    )
    transport.issue(AllReduce(torch.ones(2), "sum"), Label(rank, "0")).wait()


@pytest.mark.ranks
def test_debug_names_both_places():
    with pytest.raises(Exception, match="ranks are not at the same place") as caught:
        run_ranks(disagree, 3, True)
    assert {kind for kind, _ in caught.value.errors.values()} == {"CommunicationError"}
    assert all("step 0" in text and "step 2" in text for _, text in caught.value.errors.values())


def dies(rank):
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="gloo", timeout_seconds=600, debug=False
    )
    if rank == 2:
        transport.announce("failed: ValueError: no data")
        dist.barrier()
        return
    dist.barrier()
    transport.issue(AllReduce(torch.ones(2), "sum"), Label(4, "0")).wait()


@pytest.mark.ranks
def test_a_failure_elsewhere_ends_the_wait_long_before_the_limit():
    with pytest.raises(Exception, match="no data") as caught:
        run_ranks(dies, 3)
    assert all("rank 2 failed" in text and "step 4" in text for _, text in caught.value.errors.values())


def polls(rank):
    """How often rank 0 polls, each time 10 ms later, until it has asked thrice what became of the others."""
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="gloo", timeout_seconds=20, debug=False
    )
    asked, missing = [], transport._waiting.peers.missing
    transport._waiting.peers.missing = lambda *how: asked.append(how) or missing(*how)
    transport.gather_objects(None, "ready")
    asked.clear()  # on a busy machine the others were waited for
    num_polls, begin = 0, time.monotonic()
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.wait(["polled"], timedelta(seconds=PATIENCE_SECONDS))
    pending = [transport.issue(AllReduce(torch.ones(2), "sum"), Label(0, "0", unit)) for unit in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: begin + 0.01 * num_polls))
        while not rank and len(asked) < 3:
            assert not any(one.arrived() for one in pending)
            num_polls += 1
    store.set("polled", "")
    found = [one.wait().tolist() for one in pending]
    transport.close()
    return num_polls, found


@pytest.mark.ranks
def test_polling_asks_the_store_once_a_second():
    (num_polls, found), (_, others) = run_ranks(polls, 2)
    assert num_polls == pytest.approx(200, abs=5)
    assert found == others == [[2.0, 2.0]] * 2


def late_neighbor(rank):
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="auto", timeout_seconds=20, debug=False
    )
    found = []
    for step in range(2):
        if rank == 1 and step == 0:
            time.sleep(2.5)  # longer than a slice of waiting
        right, left = (rank + 1) % 3, (rank - 1) % 3
        sent = torch.full((5,), 10.0 * step + rank)
        ring = Neighbors({right: sent}, {left: torch.empty(5)})
        found.append(transport.issue(ring, Label(step, "ring")).wait()[left].tolist())
    transport.gather_objects(None, "the end")
    transport.close()
    return found


@pytest.mark.ranks
def test_a_late_neighbor_is_waited_for_and_the_connection_stays():
    for rank, found in enumerate(run_ranks(late_neighbor, 3)):
        left = (rank - 1) % 3
        assert found == [[float(left)] * 5, [10.0 + left] * 5]


def missing_neighbor(rank):
    transport = TorchTransport.of(
        None, device=torch.device("cpu"), backend="auto", timeout_seconds=8, debug=False
    )
    right, left = (rank + 1) % 3, (rank - 1) % 3
    transport.issue(Neighbors({right: torch.ones(5)}, {left: torch.empty(5)}), Label(6, "gossip")).wait()
    if rank == 1:
        transport.meet("another place")
        return
    try:
        transport.issue(Neighbors({}, {1: torch.empty(5)}), Label(7, "gossip")).wait()
    finally:
        time.sleep(1)


@pytest.mark.ranks
def test_a_neighbor_that_never_sends_is_an_error():
    with pytest.raises(Exception, match="rank 1 is at another place") as caught:
        run_ranks(missing_neighbor, 3)
    kinds = {rank: text for rank, (_, text) in caught.value.errors.items() if rank != 1}
    assert kinds.keys() == {0, 2}
    assert "step 7" in caught.value.errors[1][1]
    assert all("step 7, rule gossip" in text for text in kinds.values())

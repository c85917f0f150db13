"""The fault matrix reads what an elastic run says of its changes."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from benchmarks.faults.cells import SIZE, Cell, all_cells
from benchmarks.faults.launch import Found, Rank
from benchmarks.faults.verdicts import judge
from relaxcomm.engine.membership.elastic import Elastic
from relaxcomm.network.generations import Generation, Generations
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.transport import Membership

LIMIT = timedelta(seconds=5)
KILLED = next(cell for cell in all_cells() if cell.fault.name == "SIGKILL in compute")


def said_of(worker: int, capsys: pytest.CaptureFixture[str]) -> str:
    """What an elastic run says where it loses a worker."""
    left = tuple(rank for rank in range(SIZE) if rank != worker)
    rendezvous = Rendezvous(dist.HashStore(), "run", Membership(0, SIZE), left, LIMIT, LIMIT)
    generations = Generations(rendezvous, SIZE, 1.0)
    generations.current = Generation(1, left, {worker: "has ended"}, ())
    Elastic(generations, 1.0, 1).say(9, in_order=False)
    return capsys.readouterr().err


def ended_well(said: str, ranks: int) -> Rank:
    step = {"kind": "step", "seconds": 2.0, "synchronisations": 1, "trained": True, "samples": 24}
    done = {"kind": "done", "seconds": 3.0, "sum": 0.5, "accuracy": 0.9, "ranks": ranks}
    return Rank([step, done], 0, said)


def found(cell: Cell, said: str) -> Found:
    ranks = [ended_well("", SIZE - 1) for _ in range(SIZE)]
    ranks[cell.fault.victim] = Rank([], -9, "")
    survivor = next(rank for rank in range(SIZE) if rank != cell.fault.victim)
    ranks[survivor] = ended_well(said, SIZE - 1)
    return Found(ranks, 1.0, [])


@pytest.mark.parametrize("named", range(SIZE))
def test_who_was_lost_must_be_named(named, capsys):
    undisturbed = Found([ended_well("", SIZE) for _ in range(SIZE)], None, [])
    verdict = judge(KILLED, found(KILLED, said_of(named, capsys)), undisturbed)
    assert verdict.outcome == "goes on"
    assert bool(verdict.wrong) == (named != KILLED.fault.victim)

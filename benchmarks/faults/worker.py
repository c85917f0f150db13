"""A rank of a cell: trains a small model on digits, has its fault, and notes what it sees."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import relaxcomm
from benchmarks.faults import damage
from benchmarks.faults.cells import BATCH_SIZE, EPOCHS, FAULT_STEP, SAVE_STEP, SEED, SIZE, Cell
from benchmarks.faults.notes import Notes
from relaxcomm.tasks import Task, digits

_PACE_SECONDS = 0.003
_LATE_SECONDS = 30.0


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Args:
        rank: its own.
        folder: in which notes and checkpoints go.
        address: of the store.
        port: of the store.
    """

    rank: int
    folder: Path
    address: str
    port: int

    @property
    def notes(self) -> Path:
        """What this rank saw."""
        return self.folder / f"{self.rank}.notes"


def run(cell: Cell, place: Place) -> None:
    """Train to the end, or to an error, which is noted."""
    notes = Notes(place.notes)
    try:
        if cell.fault.at == "start" and place.rank == cell.fault.victim:
            notes.add("fault")
            time.sleep(_LATE_SECONDS)
        _meet(place)
        _train(cell, place, notes)
    except BaseException as error:
        notes.add("error", type=type(error).__name__, message=str(error))
        raise


def _meet(place: Place) -> None:
    os.environ |= {"RANK": str(place.rank), "WORLD_SIZE": str(SIZE), "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": place.address, "MASTER_PORT": str(place.port)}
    torch.set_num_threads(1)
    store = dist.TCPStore(place.address, place.port, None, False)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=SIZE)


def _task(place: Place, *, width: int = 32) -> Task:
    task = digits.make(SEED, learning_rate=0.1, hidden=(width,), dropout=0.0)
    torch.manual_seed(1 + place.rank)
    return task


def _train(cell: Cell, place: Place, notes: Notes) -> None:
    if cell.fault.name == "checkpoint foreign":
        other = _task(place, width=24)
        with relaxcomm.attach(other.model, other.optimizer, cell.config) as engine:
            relaxcomm.checkpoint.save(engine, place.folder / "checkpoints")
    task = _task(place)
    with relaxcomm.attach(task.model, task.optimizer, cell.config) as engine:
        loader = engine.loader(task.train_data, batch_size=BATCH_SIZE)
        step = 0
        for _ in range(EPOCHS):
            for batch in loader:
                _step(cell, place, notes, engine, task, batch, step)
                step += 1
        with engine.averaged():
            accuracy = task.evaluate(task.model)
        ranks = engine.world.size
    flat = torch.cat([p.detach().flatten() for p in task.model.parameters()])
    notes.add("done", accuracy=accuracy, sum=flat.double().sum().item(), ranks=ranks, steps=step)


def _step(
    cell: Cell, place: Place, notes: Notes, engine: relaxcomm.Engine, task: Task, batch: Any, step: int
) -> None:
    fault, is_victim = cell.fault, place.rank == cell.fault.victim
    if fault.at == "checkpoint" and step == SAVE_STEP:
        damage.to_checkpoints(cell, engine, place.folder / "checkpoints", notes)
    if is_victim and step == FAULT_STEP:
        notes.add("fault")
        if fault.at == "exchange":
            damage.die_in_an_exchange()
        elif fault.at == "step":
            damage.to_this_process(fault.name)
    # With NaN, so that an average in the background begins before the last step, and finds it.
    is_slow = is_victim and fault.name in ("10 times slower", "NaN") and step >= FAULT_STEP
    time.sleep(_PACE_SECONDS * (10 if is_slow else 1))
    weight = next(task.model.parameters())
    before = weight.detach().clone()
    task.optimizer.zero_grad()
    loss = task.loss(task.model, batch)
    if is_victim and fault.name == "NaN" and step == FAULT_STEP:
        loss = loss * float("nan")
    loss.backward()
    task.optimizer.step()
    notes.add(
        "step",
        step=step,
        trained=not torch.equal(before, weight),
        samples=len(batch[0]),
        ranks=engine.world.size,
        synchronisations=engine.statistics["synchronisations"],
    )

"""Saving a run and going on from what was saved, in one line each."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import ref

from relaxcomm.checkpoint.newest_whole import newest_whole
from relaxcomm.checkpoint.plain_state import split
from relaxcomm.checkpoint.writing import Write, clear_away, prepare
from relaxcomm.engine import Engine
from relaxcomm.engine.attaching.consistency import sharing_errors
from relaxcomm.engine.run_state import Stateful, check_others
from relaxcomm.errors import (
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    RankLostError,
    UsageError,
)
from relaxcomm.step.finite import held_error
from relaxcomm.system.telling import tell
from relaxcomm.system.warn import warn

_SPOILT = (
    "no checkpoint was saved, and the older ones are kept: start again, and the run goes on from the newest; "
    "debug: true finds the step in which it arises"
)


def save(engine: Engine, path: str | PathLike[str], *, keep: int = 2, **others: Stateful) -> Path:
    """Save all that a run needs to go on as if it had not been stopped; every rank calls it between steps.

    That is the model, its optimizers and GradScaler, the engine's state, the place in the data, and the
    generators of random numbers of Python, NumPy and PyTorch. Each rank writes its part; what is equal on all
    is written once. The checkpoint is there as a whole or not at all.

    Args:
        engine: of the run.
        path: a folder that all ranks see; the checkpoint is a folder in it, `step-00000100`.
        keep: how many checkpoints stay there; older ones are deleted when the new one is complete.
        others: what else has a state, by a name of yours, such as `scheduler=scheduler`.

    Returns: the folder of the checkpoint.

    Raises: CheckpointError, on every rank, if one could not write its part; NonFiniteError, on every rank, if
        a trained parameter of one holds NaN or infinity; ConfigError for a state that cannot be read again
        without unpickling; UsageError in the middle of a step, or for what is no engine.

    Example:
        >>> import tempfile, torch
        >>> from relaxcomm import attach, checkpoint
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with attach(model, optimizer, "local_sgd") as engine:
        ...     checkpoint.save(engine, tempfile.mkdtemp()).name
        'step-00000000'
    """
    _check_type(engine, "save")
    saving = Saving(engine, Path(path), keep, others)
    return engine.together(saving.save)


class Saving:
    """Writes checkpoints of a run to one folder, one after the other; every rank calls each method.

    Where other ranks take part before one is complete, it is given up: the part of a rank that is lost will
    never come.

    Args:
        engine: of the run.
        path: in which the checkpoints go.
        keep: how many stay.
        others: what else has a state.
    """

    def __init__(self, engine: Engine, path: Path, keep: int, others: Mapping[str, Stateful]) -> None:
        self._engine, self._path, self._keep, self._others = engine, path, keep, others
        self._write: Write | None = None
        self._world = ref(engine.world)  # in which it began; its connections must not live longer

    def save(self) -> Path:
        """One that is complete; called again, it goes on with what it has begun."""
        folder = self.settle()
        while folder is None:
            self.begin()
            folder = self.settle()
        return folder

    def begin(self) -> None:
        """Copy this rank's state, and begin to write it; training may go on.

        Raises: as `save`.
        """
        engine, self._write = self._engine, None
        world = engine.world
        with sharing_errors(world.transport, "checkpoint.save()") as told:
            state, destination = _split(engine.run_state_dict(**self._others)), None
            if self._keep < 1:  # not before, since ranks may meet there
                raise ConfigError(f"keep is {self._keep}; keep at least 1 checkpoint")
            try:
                if world.process.rank == 0:
                    destination = prepare(self._path, int(engine.statistics["steps"]), self._keep)
            except OSError as error:
                reason = f"cannot save checkpoints in {self._path}: {error.strerror}"
                raise CheckpointError(reason) from None
            told.mine = destination, engine.non_finite_parameters()
        destinations, spoilt = zip(*told.everyone, strict=True)
        if any(spoilt):
            raise held_error(spoilt, engine.step, _SPOILT)
        if world.process.rank == 0:
            clear_away(destinations[0])
        self._world = ref(world)
        self._write = Write(destinations[0], *state, world.process, engine.settings.timeout_seconds)

    def settle(self) -> Path | None:
        """Wait until all ranks have written what was begun.

        Returns: its folder; None if nothing was begun, or it was given up.

        Raises: CheckpointError, on every rank, if one could not.
        """
        write, world = self._write, self._engine.world
        if write is None:
            return None
        if self._world() is not world:
            self._write = None
            return write.destination.folder if write.give_up() else None
        event = "the end of checkpoint.save()"
        world.meet(event)  # in one process ranks take turns, and nobody writes before it had one
        try:
            with sharing_errors(world.transport, event):
                if (problem := write.wait()) is not None:
                    raise problem
        except RankLostError:
            raise  # it may be complete, see above
        except BaseException as error:
            self._write = None
            if isinstance(error, CheckpointError) and world.process.rank == 0:  # all have ended
                write.discard()
            raise
        self._write = None
        return write.destination.folder

    def is_given_up(self) -> bool:
        """Whether what was begun is not complete, and will not be, since other ranks take part now."""
        among_others = self._world() is not self._engine.world
        return among_others and self._write is not None and not self._write.give_up()


def load(engine: Engine, path: str | PathLike[str], **others: Stateful) -> Path | None:
    """Go on from the newest checkpoint that is whole, or begin anew without any; every rank calls it.

    Call it after `attach`, with the same model, optimizers and algorithm. There may be more or fewer workers
    than before, see docs/restarts.md. All files are compared with their checksums first, and nothing that is
    read can run code. Where the newest checkpoint is damaged, rank 0 warns and all go on from the one before.

    Args:
        engine: of the run.
        path: where `save` put it, or the folder of one checkpoint, which no other is taken for.
        others: what else has a state, as in `save`.

    Returns: the checkpoint's folder, or None if `path` holds none.

    Raises: ConfigError, on every rank and before anything has changed, if no checkpoint is whole, naming what
        is wrong with each, for the state of another model or algorithm, for what cannot be carried to this
        number of workers, and for `others` without a state.

    Example:
        >>> import tempfile, torch
        >>> from relaxcomm import attach, checkpoint
        >>> folder = tempfile.mkdtemp()
        >>> def train(steps):
        ...     model = torch.nn.Linear(2, 1)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     with attach(model, optimizer, "bsp") as engine:
        ...         checkpoint.load(engine, folder)
        ...         while engine.statistics["steps"] < steps:
        ...             model(torch.ones(1, 2)).sum().backward()
        ...             optimizer.step()
        ...         checkpoint.save(engine, folder)
        ...         return len(engine.statistics.latest), engine.statistics["steps"]
        >>> train(2)[1], train(5)[1]  # the second goes on with the third step
        (2, 5)
    """
    _check_type(engine, "load")
    return engine.together(lambda: _load(engine, Path(path), others))


def _check_type(engine: object, called: str) -> None:
    """Refuse what is no engine."""
    if not isinstance(engine, Engine):
        raise UsageError(
            f"{type(engine).__name__} is no engine, which knows the whole run; give what attach() has "
            f"returned: checkpoint.{called}(engine, path)"
        )


def _load(engine: Engine, path: Path, others: Mapping[str, Stateful]) -> Path | None:
    world = engine.world
    with sharing_errors(world.transport, "checkpoint.load()"):
        check_others(others)  # also where nothing is saved yet: the first `save` may come hours later
    found = newest_whole(world, path)
    if found is None:
        return None
    with sharing_errors(world.transport, "checkpoint.load()"):
        if found.world_size == world.process.world_size:
            (state,) = found.states
        elif world.is_sharded:
            raise ConfigError(
                f"{found.folder} was saved by {found.world_size} processes, and here are "
                f"{world.process.world_size}: a sharded run goes on with as many replicas and shards as it "
                "had"
            )
        else:
            state = engine.carry_run_state_dicts(found.states, **others)
    engine.load_run_state_dict(state, **others)
    if found.world_size != world.process.world_size and world.process.rank == 0:
        saved, now = found.world_size, world.process.world_size
        tell(f"{found.folder} was saved by {saved} workers; {now} go on, from the mean of their models")
    if found.damages and world.process.rank == 0:
        newer = "; ".join(found.damages)
        warn(f"{newer}: the run goes on from {found.folder}", CheckpointWarning)
    return found.folder


def _split(exported: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The state of a rank without tensors, and copies of these; what the engine gives is a copy already."""
    plain, tensors = {}, {}
    for name, part in exported.items():
        plain[name], found = split(name, part, copy=name != "engine")
        tensors.update(found)
    return plain, tensors

"""Saving a run and going on from what was saved, in one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from relaxcomm.checkpoint.manifest import Kept, Manifest, checkpoints, verify
from relaxcomm.checkpoint.plain_state import decode, join, split
from relaxcomm.checkpoint.storage import METADATA, Reading
from relaxcomm.checkpoint.writing import Place, Write, prepare, skeleton_of
from relaxcomm.engine import Engine
from relaxcomm.engine.consistency import share
from relaxcomm.engine.run_state import Stateful
from relaxcomm.errors import ConfigError, RelaxcommError


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

    Raises: RelaxcommError, on every rank, if one could not write its part; ConfigError for a state that
        cannot be read again without unpickling; UsageError in the middle of a step.

    Example:
        >>> import tempfile, torch
        >>> from relaxcomm import attach, checkpoint
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with attach(model, optimizer, "local_sgd") as engine:
        ...     checkpoint.save(engine, tempfile.mkdtemp()).name
        'step-00000000'
    """
    write = begin(engine, Path(path), keep, others)
    settle(engine, write)
    return write.place.folder


def begin(engine: Engine, path: Path, keep: int, others: Mapping[str, Stateful]) -> Write:
    """Copy this rank's state, and begin to write it; training may go on.

    Args:
        engine: of the run.
        path: in which the checkpoint goes.
        keep: how many checkpoints stay.
        others: what else has a state.

    Raises: as `save`.
    """
    world = engine.world
    problem: RelaxcommError | None = None
    state, place = None, None
    exported = engine.run_state_dict(**others)
    try:
        if keep < 1:
            raise ConfigError(f"keep is {keep}; keep at least 1 checkpoint")
        state = _split(exported)
        place = prepare(path, int(engine.statistics["steps"]), keep) if world.rank == 0 else None
    except OSError as error:
        problem = RelaxcommError(f"cannot save checkpoints in {path}: {error.strerror}")
    except RelaxcommError as error:
        problem = error
    places: list[Place | None] = share(world.transport, problem, place, "checkpoint.save()")
    assert places[0] is not None
    assert state is not None
    return Write(places[0], *state, world.rank, world.size, engine.settings.timeout_seconds)


def settle(engine: Engine, write: Write) -> None:
    """Wait until all ranks have written a checkpoint; every rank calls it.

    Raises: RelaxcommError, on every rank, if one could not.
    """
    engine.world.meet(
        "the end of checkpoint.save()"
    )  # in one process ranks take turns, and nobody writes before it had one
    share(engine.world.transport, write.wait(), None, "the end of checkpoint.save()")


def load(engine: Engine, path: str | PathLike[str], **others: Stateful) -> Path | None:
    """Go on from the newest complete checkpoint, or begin anew where there is none; every rank calls it.

    Call it after `attach`, with the same model, optimizers and algorithm. There may be more or fewer workers
    than before, see docs/restarts.md. All files are compared with their checksums first, and nothing that is
    read can run code.

    Args:
        engine: of the run.
        path: where `save` put it, or the folder of one checkpoint.
        others: what else has a state, as in `save`.

    Returns: the checkpoint's folder, or None if `path` holds none.

    Raises: ConfigError, on every rank and before anything has changed, for a file that is damaged, naming it,
        for the state of another model or algorithm, and for what cannot be carried to this number of workers.

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
    world = engine.world
    newest, problem = None, None
    try:
        newest = _newest(Path(path))
    except OSError as error:
        problem = ConfigError(f"cannot read {path}: {error.strerror}")
    found: list[Path | None] = share(world.transport, problem, newest, "checkpoint.load()")
    folder = found[0]
    if folder is None:
        return None
    state = None
    try:
        manifest = Manifest.read(folder)
        verify(folder, sorted(manifest.files.items())[world.rank :: world.size])
        if manifest.world_size == world.size:
            (state,) = _read(folder, manifest, [world.rank])
        else:
            states = _read(folder, manifest, range(manifest.world_size))
            state = engine.carry_run_state_dicts(states, **others)
    except ConfigError as error:
        problem = error
    share(world.transport, problem, None, "checkpoint.load()")
    assert state is not None
    engine.load_run_state_dict(state, **others)
    return folder


def _split(exported: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The state of a rank without tensors, and copies of these; what the engine gives is a copy already."""
    plain, tensors = {}, {}
    for name, part in exported.items():
        plain[name], found = split(name, part, copy=name != "engine")
        tensors.update(found)
    return plain, tensors


def _newest(path: Path) -> Path | None:
    """The newest checkpoint of a folder, which may be one itself."""
    if (path / "manifest.json").exists():
        return path
    complete: list[Kept] = checkpoints(path)
    return complete[-1].folder if complete else None


def _read(folder: Path, manifest: Manifest, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """The states of some ranks, from files that were verified; what they have in common is read once."""
    try:
        reading = Reading(folder, frozenset(manifest.files))
        held = {one: _decoded(reading, skeleton_of(one)) for one in ranks}
        wanted = {entry for _, names in held.values() for entry in names.values()}
        entries = reading.read(wanted.__contains__)
        return [
            {
                part: join(value, {path: entries[entry] for path, entry in names.items()})
                for part, value in plain.items()
            }
            for plain, names in held.values()
        ]
    except Exception as error:  # the checksums are right, so somebody else has written it
        raise ConfigError(
            f"{folder / METADATA} is no checkpoint of relaxcomm: {type(error).__name__}: {error}"
        ) from None


def _decoded(reading: Reading, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A rank's state without tensors, and in which entries these are."""
    held = decode(reading.read(lambda entry: entry == name)[name].numpy().tobytes())
    return held["plain"], held["names"]

"""Ray Train: metrics, and checkpoints that hold what every worker needs, through `ray.train.report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray.train
import torch
from torch.distributed.checkpoint.stateful import Stateful

from relaxcomm.engine import Engine
from relaxcomm.engine.attaching.consistency import sharing_errors
from relaxcomm.errors import CheckpointError


def report(engine: Engine, metrics: Mapping[str, Any], **others: Stateful) -> None:
    """Report metrics and the engine's statistics, with a checkpoint to which every worker adds its state.

    Args:
        engine: as `relaxcomm.attach` gives it in the training loop; between two steps.
        metrics: of this worker, by name; Ray Train keeps those of rank 0.
        others: what else has a state, by a name of yours, such as `scheduler=scheduler`.

    Raises: UsageError in the middle of a step, or after `close`.
    """
    process = engine.world.process
    with TemporaryDirectory() as folder:
        torch.save(engine.run_state_dict(**others), Path(folder, _file(process.rank, process.world_size)))
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({**engine.statistics, **metrics}, checkpoint=checkpoint)


def resume(engine: Engine, **others: Stateful) -> bool:
    """Go on from the checkpoint that Ray Train has for a run that begins again; every worker must call it.

    With another number of workers it is carried over, as docs/restarts.md says.

    Args:
        engine: right after `relaxcomm.attach`.
        others: as in `report`.

    Returns: whether there was one.

    Raises: ConfigError for a checkpoint of another run; CheckpointError for one that `report` has not made.
    """
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return False
    with sharing_errors(engine.world.transport, "resume()"), checkpoint.as_directory() as folder:
        state = _read(engine, Path(folder), others)
    engine.load_run_state_dict(state, **others)
    return True


def _read(engine: Engine, folder: Path, others: Mapping[str, Stateful]) -> Mapping[str, Any]:
    """The state that this worker goes on from."""
    process = engine.world.process
    found = len(list(folder.glob("rank-*.pt")))
    paths = [folder / _file(rank, found) for rank in range(found)]
    if not paths or not all(path.is_file() for path in paths):
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise CheckpointError(
            f"the checkpoint holds {names}, and not one file of each worker's; save it by "
            "relaxcomm.integrations.ray.report on all workers"
        )
    if found == process.world_size:
        paths = [paths[process.rank]]
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in paths]
    return states[0] if found == process.world_size else engine.carry_run_state_dicts(states, **others)


def _file(rank: int, world_size: int) -> str:
    return f"rank-{rank}-of-{world_size}.pt"

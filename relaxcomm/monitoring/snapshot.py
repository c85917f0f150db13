"""What a run shows of itself at one moment; the exporter and the run log both read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Counts since attach, and the latest values.

    Args:
        algorithm: its name.
        keeps_step: whether all ranks are always at the same step.
        world_size: number of ranks.
        steps: closed steps.
        synchronisations: steps, and events between them, in which something was exchanged.
        last_synchronisation: when the last one was, in seconds since 1970, or None.
        samples: trained on by this rank.
        bytes_uncompressed: what full synchronisation would have sent.
        bytes_moved: `(sent, received)` in bytes for training, by exchange primitive or, for what the
            engine sends itself, by purpose.
        evaluation_bytes: `(sent, received)` for `Engine.averaged` and the average of `Engine.close`.
        exchanges: `(operations, seconds)` by exchange primitive, from issue to the result.
        step_bounds: upper bounds of the histogram's buckets, in seconds.
        step_counts: timed steps in each bucket, and above the last.
        step_seconds: sum of the timed steps.
        exposed_seconds: time in timed steps, and in rounds after them, that this rank stood waiting for the
            network.
        hidden_seconds: time in these in which exchanges were on their way behind computation.
        callback_seconds: time in the engine's own callbacks.
        triggers: `(value, threshold)` of the triggers that vote, by the first rule that has it.
        values: latest values by name.
        evaluations: latest held-out measures by name.
    """

    algorithm: str
    keeps_step: bool
    world_size: int
    steps: int
    synchronisations: int
    last_synchronisation: float | None
    samples: int
    bytes_uncompressed: int
    bytes_moved: Mapping[str, tuple[int, int]]
    evaluation_bytes: tuple[int, int]
    exchanges: Mapping[str, tuple[int, float]]
    step_bounds: tuple[float, ...]
    step_counts: tuple[int, ...]
    step_seconds: float
    exposed_seconds: float
    hidden_seconds: float
    callback_seconds: float
    triggers: Mapping[str, tuple[float | Tensor, float]]
    values: Mapping[str, float | Tensor]
    evaluations: Mapping[str, float | Tensor]

    def as_json(self) -> dict[str, Any]:
        """This snapshot as plain JSON values; what is not finite becomes text."""
        made: dict[str, Any] = jsonable(asdict(self))
        return made


def jsonable(value: Any) -> Any:
    """Numbers, texts, lists and mappings that JSON can hold.

    Example:
        >>> jsonable({"change": float("inf"), "counts": (1, 2)})
        {'change': 'inf', 'counts': [1, 2]}
    """
    if isinstance(value, Tensor):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

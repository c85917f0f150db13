"""Parts of a run that load a saved state by a method of their own: all on all ranks, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch.optim.lr_scheduler import LRScheduler

from relaxcomm.engine.consistency import share
from relaxcomm.errors import ConfigError, RelaxcommError
from relaxcomm.network.transport import Transport


class SavedPart(NamedTuple):
    """Something with a saved state.

    Args:
        name: that the user knows.
        part: what goes on from the state.
        load: lets it do so.
    """

    name: str
    part: object
    load: Callable[[], object]


def load_all(transport: Transport, parts: Sequence[SavedPart]) -> None:
    """Have all parts of all ranks go on from what was saved, or none.

    Raises: ConfigError, on every rank, where one does not take it.
    """
    before, problem = [dict(vars(one.part)) if hasattr(one.part, "__dict__") else {} for one in parts], None
    for one in parts:
        try:
            one.load()
        except Exception as error:  # whatever it says to what it does not know
            problem = ConfigError(
                f"{one.name} does not take the saved state: {error!r}; load another checkpoint"
            )
            break
    try:
        share(transport, problem, None, "checkpoint.load()")
    except RelaxcommError:
        for one, kept in zip(parts, before, strict=True):
            if kept:
                vars(one.part).clear()
                vars(one.part).update(kept)
        raise


def check_schedulers(others: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError where another kind of scheduler was saved, which torch's would take for its own."""
    for name, one in others.items():
        if not isinstance(one, LRScheduler):
            continue
        lacks = sorted(key for key in one.state_dict() if key[0] != "_" and key not in saved[name])
        if lacks:
            raise ConfigError(
                f"the saved state of {name!r} has no {', '.join(lacks)}, which {type(one).__name__} keeps: "
                "another kind of scheduler was saved; make that one, or begin a run of its own"
            )

"""Parts of a run that load a saved state by a method of their own: all on all ranks, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from relaxcomm.engine.attaching.consistency import sharing_errors
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
    part: Any
    load: Callable[[], object]


def load_all(transport: Transport, parts: Sequence[SavedPart]) -> None:
    """Have all parts of all ranks go on from what was saved, or none.

    Raises: ConfigError, on every rank, where one does not take it.
    """
    before = [_Before.of(one.part) for one in parts]
    try:
        with sharing_errors(transport, "checkpoint.load()"):
            for one in parts:
                _load(one)
    except RelaxcommError:
        for one, kept in zip(parts, before, strict=True):
            kept.put_back(one.part)
        raise


def _load(one: SavedPart) -> None:
    try:
        one.load()
    except RelaxcommError:  # says what it is about, and what to do
        raise
    except Exception as error:  # whatever it says to what it does not know
        raise ConfigError(
            f"{one.name} does not take the saved state: {error!r}; load another checkpoint"
        ) from None


class _Before(NamedTuple):
    """What a part goes back to.

    Args:
        attributes: of it.
        state: for what lies deeper, such as schedulers in a scheduler or tensors that a load writes into.
    """

    attributes: dict[str, Any]
    state: dict[str, Any] | None

    @classmethod
    def of(cls, part: Any) -> _Before:
        """What a part of the run is now.

        What a load replaces as a whole needs no copy: an optimizer's moments, which are large, and what a
        loader, such as torchdata's, would begin to load if it were asked for its state.
        """
        is_loader = isinstance(part, Iterable) and not isinstance(part, nn.Module)
        attributes, state = dict(getattr(part, "__dict__", {})), None
        if not is_loader and not isinstance(part, Optimizer):
            with suppress(Exception):  # some have no state before they have begun
                state = deepcopy(part.state_dict())
        return cls(attributes, state)

    def put_back(self, part: Any) -> None:
        """Have it be as it was, also where its load has ended half way."""
        self._put_attributes(part)
        if self.state is not None:
            with suppress(Exception):  # what is wrong has been said
                part.load_state_dict(self.state)
            self._put_attributes(part)  # not the copies of them

    def _put_attributes(self, part: Any) -> None:
        if self.attributes:
            vars(part).clear()
            vars(part).update(self.attributes)


def scheduler_kinds(others: Mapping[str, Any]) -> dict[str, str]:
    """Of which class of torch's each scheduler is, where it is; one of the user's own may wrap any."""
    kinds = {name: _kind(one) for name, one in others.items() if isinstance(one, LRScheduler)}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(scheduler: object) -> str | None:
    """As in `SequentialLR(LinearLR, StepLR)`; a subclass counts as torch's class that it derives from."""
    classes = (one.__name__ for one in type(scheduler).__mro__ if one.__module__.startswith("torch.optim."))
    name = next(classes, "")
    inner = [_kind(one) for one in getattr(scheduler, "_schedulers", ())]
    known = [one for one in inner if one is not None]
    if name in ("", "LRScheduler", "_LRScheduler") or len(known) < len(inner):
        return None
    return f"{name}({', '.join(known)})" if known else name


def check_schedulers(
    others: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, str]
) -> None:
    """Raise ConfigError where another kind of scheduler was saved, which torch's would take for its own.

    Args:
        others: what is given.
        saved: their states.
        kinds: the `scheduler_kinds` of those that were saved, if they are known.
    """
    advice = "make the scheduler that was saved, or begin a run of its own"
    for name, kind in scheduler_kinds(others).items():
        if kinds.get(name, kind) != kind:
            raise ConfigError(
                f"the saved state of {name!r} is of {kinds[name]}, and {kind} is given; {advice}"
            )
    for name, one in others.items():
        if not isinstance(one, LRScheduler):
            continue
        lacks = sorted(key for key in one.state_dict() if key[0] != "_" and key not in saved[name])
        if lacks:
            raise ConfigError(
                f"the saved state of {name!r} has no {', '.join(lacks)}, which {type(one).__name__} keeps: "
                f"another kind of scheduler was saved; {advice}"
            )

"""What the optimizers of all ranks hold, copied from one: where there is no mean, or some stood still."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from relaxcomm.errors import ConfigWarning
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import moment_like
from relaxcomm.step.optimizer_states import is_plain, states_of
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Item, local
from relaxcomm.tensors.memory_order import Strides, dense_strides

_EVENT = "the copy of optimizers"


class _Mark(Enum):
    LEFT = "cannot be sent"


@dataclass(frozen=True)
class _Form:
    """A tensor whose entries come later.

    Args:
        shape, strides, dtype: of it.
        on_device: whether it is not on the host, as counts of steps are beside a model on a GPU.
    """

    shape: tuple[int, ...]
    strides: Strides
    dtype: torch.dtype
    on_device: bool

    @classmethod
    def of(cls, held: Tensor) -> _Form:
        """That of a tensor."""
        return cls(tuple(held.shape), dense_strides(held), held.dtype, held.device.type != "cpu")

    def empty(self, parameter: Tensor) -> Tensor:
        """Memory for what another rank's optimizer holds of a parameter."""
        device = parameter.device if self.on_device else torch.device("cpu")
        made = torch.empty(self.shape, dtype=self.dtype, device=device)
        if self.strides is not None:
            made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)
        return moment_like(parameter, made)


_Forms: TypeAlias = dict[Any, Any]
"""From what another rank makes values: of tensors forms, else themselves, or a mark; by name."""


@dataclass(frozen=True)
class _Part:
    """A dict that an optimizer holds: of a parameter, of a group, or of its own.

    Args:
        name: of it, the same on all ranks.
        values: all of it.
        like: a tensor that lies where new ones go.
        is_group: whether there are parameters in it, and what cannot be sent is the user's.
    """

    name: str
    values: dict[Any, Any]
    like: Tensor
    is_group: bool = False

    def forms(self) -> _Forms:
        """What is told of it."""
        return {
            key: _form(value)
            for key, value in self.values.items()
            if isinstance(key, str | int) and not (self.is_group and key == "params")
        }

    def take(self, theirs: _Forms) -> list[Item]:
        """Hold what another rank holds; the tensors are to be copied from that."""
        items: list[Item] = []
        lacks = [key for key, form in theirs.items() if form is _Mark.LEFT and self.values.get(key) is None]
        made = {
            key: _made(form, self._held(key), f"{self.name}.{key}", self.like, items)
            for key, form in theirs.items()
            if form is not _Mark.LEFT
        }
        for key in self.forms().keys() - theirs.keys() if not self.is_group else ():
            del self.values[key]
        self.values.update(made)
        if lacks and not self.is_group:  # the optimizer begins with all of it or nothing
            for key in self.forms():
                del self.values[key]
        return items

    def _held(self, key: int | str) -> Any:
        """What is here, to be filled; not a list of a group's: groups may share the one of the defaults."""
        held = self.values.get(key)
        return None if self.is_group and not isinstance(held, Tensor) else held


def begin_as(
    replica: Replica, world: World, root: int, names: Collection[str], *, settings: bool
) -> tuple[list[Item], set[str]]:
    """Have the optimizers of all ranks hold of some parameters what those of one rank hold.

    Args:
        replica: whose optimizers.
        world: the ranks.
        root: the one rank.
        names: of the parameters.
        settings: whether they hold its groups' settings, too, and what they keep of no parameter.

    Returns: the tensors, which are to be copied from that rank, and names of what cannot be.
    """
    parts = [
        _Part(f"{place}", states.setdefault(parameter, {}), parameter)
        for place, parameter, states in states_of(replica, names)
    ]
    parts += _settings(replica) if settings else []
    mine = {part.name: part.forms() for part in parts}
    told = cast("list[dict[str, _Forms]]", world.gather(mine if world.rank == root else {}, _EVENT))[root]
    items = [item for part in parts for item in part.take(told[part.name])]
    for _, parameter, states in states_of(replica, names):
        if not states[parameter]:
            del states[parameter]
    found = [item for part in parts if not part.is_group for item in told[part.name].items()]
    return items, {str(key) for key, form in found if form is _Mark.LEFT}


def warn_of_left(event: str, left: Iterable[str]) -> None:
    """Warn of what is not sent, if there is any."""
    if shown := ", ".join(sorted(left)):
        warnings.warn(
            f"after {event} each rank's optimizers keep their own {shown}, which holds more than numbers and "
            "plain tensors and is not sent: replicas may differ from now on",
            ConfigWarning,
            stacklevel=3,
        )


def _settings(replica: Replica) -> list[_Part]:
    """The optimizers' groups, and what they keep of no parameter."""
    like, parts = torch.empty(0, device=replica.device), []
    for index, optimizer in enumerate(replica.optimizers):
        groups = enumerate(optimizer.param_groups)
        parts += [_Part(f"{index}.group {number}", group, like, is_group=True) for number, group in groups]
        parts.append(_Part(f"{index}", optimizer.state, like))
    return parts


def _form(value: Any) -> Any:
    """What a value is made from on another rank."""
    if isinstance(value, Tensor):
        held = local(value)
        return _Form.of(held) if is_plain(held) else _Mark.LEFT
    if value is None or isinstance(value, int | float | str):
        return value
    if type(value) is dict:
        made: Any = {key: _form(one) for key, one in value.items()}
        return _Mark.LEFT if _Mark.LEFT in made.values() else made
    if type(value) in (list, tuple):
        made = type(value)(map(_form, value))
        return _Mark.LEFT if _Mark.LEFT in made else made
    return _Mark.LEFT


def _made(form: Any, here: Any, name: str, like: Tensor, items: list[Item]) -> Any:
    """A value from its form, in the memory of what this rank holds, if it can be; its tensors are added.

    Dicts and lists are filled in place: an optimizer may hold them elsewhere too.
    """
    if isinstance(form, _Form):
        tensor = here if isinstance(here, Tensor) and _form(here) == form else form.empty(like)
        items.append(Item(name, local(tensor)))
        return tensor
    if isinstance(form, dict):
        kept = here if isinstance(here, dict) else {}
        made = {key: _made(one, kept.get(key), f"{name}.{key}", like, items) for key, one in form.items()}
        kept.clear()
        kept.update(made)
        return kept
    if isinstance(form, list | tuple):
        known = dict(enumerate(here)) if isinstance(here, list | tuple) else {}
        held = [
            _made(one, known.get(place), f"{name}.{place}", like, items) for place, one in enumerate(form)
        ]
        if isinstance(form, list) and isinstance(here, list):
            here[:] = held
            return here
        return type(form)(held)
    return form

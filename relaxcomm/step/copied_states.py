"""What the optimizers of all ranks hold, copied from one: where there is no mean, or some stood still."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor

from relaxcomm.errors import ConfigWarning
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import PARAM_NAMES, moment_like
from relaxcomm.step.held_states import is_plain
from relaxcomm.step.optimizer_states import states_of
from relaxcomm.step.world import World
from relaxcomm.tensors.items import Item, local
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
        """The form of a tensor."""
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
        is_group: whether it is a group's or of the defaults: what cannot be sent there is the user's.
    """

    name: str
    values: dict[Any, Any]
    like: Tensor
    is_group: bool = False

    def keys(self) -> list[str | int]:
        """The keys of what is told of it."""
        own = {"params", PARAM_NAMES} if self.is_group else set()
        return [key for key in self.values if isinstance(key, str | int) and key not in own]

    def forms(self, seen: dict[int, Any]) -> _Forms:
        """What is told of it; `seen`: the forms so far, by what they are of: what is shared has one."""
        return {key: _form(self.values[key], seen) for key in self.keys()}

    def take(self, theirs: _Forms, copy: _Copy) -> None:
        """Hold what another rank holds; the tensors are to be copied from that."""
        lacks = [key for key, form in theirs.items() if form is _Mark.LEFT and self.values.get(key) is None]
        made = {
            key: copy.made(form, self.values.get(key), f"{self.name}.{key}", self.like)
            for key, form in theirs.items()
            if form is not _Mark.LEFT
        }
        for key in self.keys() if not self.is_group else ():
            if key not in theirs or lacks:  # the optimizer begins with all of it or nothing
                del self.values[key]
        if not lacks or self.is_group:
            self.values.update(made)


class _Copy:
    """What this rank's optimizers hold, made from the forms of another rank's."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._made: dict[int, Any] = {}
        self._filled: set[int] = set()

    def made(self, form: Any, here: Any, name: str, like: Tensor) -> Any:
        """A value from its form, in the memory of what this rank holds, if it can be.

        Dicts, lists and tensors are filled in place: an optimizer may hold them elsewhere too. What is one
        there is one here, and what is one here alone, as a default of several groups, is not filled twice.
        """
        if form is None or isinstance(form, int | float | str):
            return form
        if id(form) not in self._made:
            kept = None if id(here) in self._filled else here
            self._filled.add(id(here))
            self._made[id(form)] = self._filled_in(form, kept, name, like)
        return self._made[id(form)]

    def _filled_in(self, form: Any, here: Any, name: str, like: Tensor) -> Any:
        if isinstance(form, _Form):
            tensor = here if isinstance(here, Tensor) and _form(here, {}) == form else form.empty(like)
            self.items.append(Item(name, local(tensor)))
            return tensor
        if isinstance(form, dict):
            kept = here if isinstance(here, dict) else {}
            made = {key: self.made(one, kept.get(key), f"{name}.{key}", like) for key, one in form.items()}
            kept.clear()
            kept.update(made)
            return kept
        known = dict(enumerate(here)) if isinstance(here, list | tuple) else {}
        held = [self.made(one, known.get(at), f"{name}.{at}", like) for at, one in enumerate(form)]
        if isinstance(form, list) and isinstance(here, list):
            here[:] = held
            return here
        return type(form)(held)


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
        _Part(name, states.setdefault(parameter, {}), parameter)
        for name, parameter, states in states_of(replica, names)
    ]
    parts += _settings(replica) if settings else []
    seen: dict[int, Any] = {}
    is_root = world.rank == root
    everyone = world.gather({part.name: part.forms(seen) if is_root else {} for part in parts}, _EVENT)
    told, copy = everyone[root], _Copy()
    known = {part.name: part for part in parts}
    parts = [known[name] for name in told if all(name in one for one in everyone)]  # groups may differ
    for part in parts:
        part.take(told[part.name], copy)
    for _, parameter, states in states_of(replica, names):
        if not states[parameter]:
            del states[parameter]
    found = [item for part in parts if not part.is_group for item in told[part.name].items()]
    return copy.items, {str(key) for key, form in found if form is _Mark.LEFT}


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
    """The optimizers' defaults, which groups may share, their groups, and what they keep of no parameter.

    Each is named after one of its parameters: ranks may list optimizers and groups in other orders.
    """
    like, parts = torch.empty(0, device=replica.device), []
    names = replica.names
    for index, optimizer in enumerate(replica.optimizers):
        found = [[names[p] for p in group["params"] if p in names] for group in optimizer.param_groups]
        pairs = list(zip(found, optimizer.param_groups, strict=True))
        groups = {min(named): group for named, group in pairs if named}
        first = min(groups, default=f"none, number {index}")
        others = [group for named, group in pairs if not named]
        groups |= {f"none, number {number} beside {first}": one for number, one in enumerate(others)}
        parts.append(_Part(f"defaults of {first}", optimizer.defaults, like, is_group=True))
        parts += [_Part(f"group of {name}", group, like, is_group=True) for name, group in groups.items()]
        parts.append(_Part(f"optimizer of {first}", optimizer.state, like))
    return parts


def _form(value: Any, seen: dict[int, Any]) -> Any:
    """What a value is made from on another rank: one form for one value, also where it is held twice."""
    if value is None or isinstance(value, int | float | str):
        return value
    if id(value) not in seen:
        seen[id(value)] = _new_form(value, seen)
    return seen[id(value)]


def _new_form(value: Any, seen: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        held = local(value)
        return _Form.of(held) if is_plain(held) else _Mark.LEFT
    if type(value) is dict:
        made: Any = {key: _form(one, seen) for key, one in value.items()}
        return _Mark.LEFT if _Mark.LEFT in made.values() else made
    if type(value) in (list, tuple):
        made = type(value)(_form(one, seen) for one in value)
        return _Mark.LEFT if _Mark.LEFT in made else made
    return _Mark.LEFT

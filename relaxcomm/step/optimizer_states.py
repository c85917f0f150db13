"""What the optimizers of ranks that trained alone hold: made alike, to be averaged or copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.named_parameters import param_groups
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import moment_like
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Item, Strides, are_dense, local

Place: TypeAlias = tuple[int, str]
"""An optimizer and a parameter."""
Number: TypeAlias = tuple[float, torch.dtype | None, bool]
"""Such as of steps; with its type if it is a tensor, and whether that is on a device."""
_EVENT, _COPY = "the average of moments", "the copy of moments"


@dataclass
class _Held:
    """What a rank's optimizer holds of a parameter.

    Args:
        moments: shape and type of tensors that are averaged, by name.
        numbers: such as of its steps.
    """

    moments: dict[str, tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)

    @property
    def steps(self) -> float:
        """How often the parameter was stepped, where that is counted."""
        return self.numbers["step"][0] if "step" in self.numbers else -1.0


@dataclass(frozen=True)
class Moment:
    """A tensor of numbers that an optimizer holds of a parameter.

    Args:
        item: it, with a name.
        weight: by which this rank's goes into the mean, as some ranks have none.
    """

    item: Item
    weight: float


@dataclass
class _Copied:
    """What is copied of an optimizer's state of a parameter.

    Args:
        tensors: shape, strides, type, and whether they are on a device, by name.
        numbers: such as of its steps.
        left: names of what is neither.
    """

    tensors: dict[str, tuple[tuple[int, ...], Strides, torch.dtype, bool]] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def moments(replica: Replica, world: World, names: Collection[str]) -> list[Moment]:
    """What the optimizers of all ranks hold of some parameters, after they were made alike.

    Of what some ranks have not begun, since they never used a parameter, the mean is that of the others: it
    need not begin at zero. Counts of steps are those of the rank that has made most.
    """
    found = _held(replica, names)
    told = cast("Sequence[dict[Place, _Held]]", world.gather(found, _EVENT))
    for place, parameter, states in _states(replica, names):
        theirs = [one[place] for one in told if place in one]
        if theirs:
            _begin(states[parameter], parameter, theirs)
            farthest = max(theirs, key=lambda one: one.steps)
            _put(states[parameter], farthest.numbers, parameter.device)
    several, shapes = len(replica.optimizers) > 1, defaultdict(list)
    for rank in told:
        for place, held in rank.items():
            for name, shape in held.moments.items():
                shapes[place, name].append(shape)
    return [
        Moment(
            Item(f"{name} of {place[1]}" + several * f" in optimizer {place[0]}", local(value)),
            (place in found and name in found[place].moments) * world.size / len(shapes[place, name]),
        )
        for place, parameter, states in _states(replica, names)
        for name, value in sorted(states.get(parameter, {}).items())
        if len(set(shapes.get((place, name), ()))) == 1  # where ranks hold different ones there is no mean
    ]


def begin_as(
    replica: Replica, world: World, root: int, names: Collection[str]
) -> tuple[list[Item], set[str]]:
    """Have the optimizers of all ranks hold of some parameters what those of one rank hold.

    Numbers are that rank's afterwards.

    Returns: the tensors, which are to be copied from that rank, and names of what cannot be.
    """
    mine = {place: _copied(states.get(one, {})) for place, one, states in _states(replica, names)}
    told = cast("Mapping[Place, _Copied]", world.gather(mine if world.rank == root else {}, _COPY)[root])
    items: list[Item] = []
    for place, parameter, states in _states(replica, names):
        theirs, here = told[place], mine[place]
        if theirs == _Copied():
            states.pop(parameter, None)
            continue
        state = states[parameter]
        for name in state.keys() - theirs.tensors.keys() - theirs.numbers.keys() - set(theirs.left):
            del state[name]
        _put(state, theirs.numbers, parameter.device)
        for name, kind in sorted(theirs.tensors.items()):
            if here.tensors.get(name) != kind:
                state[name] = _empty(parameter, *kind)
            items.append(Item(f"{name} of {place}", local(state[name])))
    return items, {name for one in told.values() for name in one.left}


def share_settings(replica: Replica, world: World, root: int) -> None:
    """Have the optimizers' groups and the GradScaler hold the numbers that those of one rank hold."""
    groups, scaler = param_groups(replica.optimizers), replica.scaler
    mine = [_numbers(group) for group in groups], None if scaler is None else scaler.state_dict()
    told = cast("tuple[list[dict[str, Number]], dict[str, Any]]", world.gather(mine, _COPY)[root])
    for group, numbers in zip(groups, told[0], strict=False):
        _put(group, numbers, replica.device)
    if scaler is not None and told[1]:  # nothing is kept by one that is off
        scaler.load_state_dict(told[1])


def _states(
    replica: Replica, names: Collection[str]
) -> Iterator[tuple[Place, Tensor, dict[Any, dict[str, Any]]]]:
    """Some parameters of each optimizer, with what that holds of all of its own."""
    for index, optimizer in enumerate(replica.optimizers):
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for item in replica.parameters:
            if item.name in names and id(item.parameter) in stepped:
                yield (index, item.name), item.parameter, optimizer.state


def _held(replica: Replica, names: Collection[str]) -> dict[Place, _Held]:
    found: dict[Place, _Held] = {}
    for place, parameter, states in _states(replica, names):
        state = states.get(parameter, {})
        moments = {name: value for name, value in state.items() if _is_moment(name, value, parameter)}
        shapes = {name: (tuple(value.shape), value.dtype) for name, value in moments.items()}
        if state:
            numbers = _numbers({name: value for name, value in state.items() if name not in moments})
            found[place] = _Held(shapes, numbers)
    return found


def _numbers(values: Mapping[str, Any]) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.dim() == 0:
            found[name] = value.item(), value.dtype, value.device.type != "cpu"
        elif isinstance(value, int | float):
            found[name] = value, None, False
    return found


def _copied(state: Mapping[str, Any]) -> _Copied:
    found = _Copied(numbers=_numbers(state))
    for name, value in state.items():
        held = local(value) if isinstance(value, Tensor) else None
        if held is not None and held.dim() and _is_plain(held):
            strides = held.stride() if are_dense(held.stride(), held.shape) else None
            found.tensors[name] = tuple(held.shape), strides, held.dtype, held.device.type != "cpu"
        elif name not in found.numbers and value is not None:
            found.left.append(name)
    return found


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has memory for each entry, and is not made of others, as quantised moments are."""
    return not hasattr(tensor, "__tensor_flatten__") and can_be_copied(tensor)


def _empty(
    parameter: Tensor, shape: tuple[int, ...], strides: Strides, dtype: torch.dtype, on_device: bool
) -> Tensor:
    """Memory for what another rank's optimizer holds of a parameter."""
    device = parameter.device if on_device else torch.device("cpu")
    made = torch.empty(shape, dtype=dtype, device=device)
    if strides is not None:
        made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return moment_like(parameter, made)


def _is_moment(name: str, value: object, parameter: Tensor) -> bool:
    """Whether a value of a state is averaged: it holds numbers, not how many steps there were."""
    if not isinstance(value, Tensor) or name == "step":
        return False
    return (value.is_floating_point() or value.is_complex()) and (
        value.dim() > 0 or value.shape == parameter.shape
    )


def _begin(state: dict[str, Any], parameter: Tensor, theirs: Sequence[_Held]) -> None:
    """Hold zeros of what others have begun."""
    for one in theirs:
        for name, (shape, dtype) in one.moments.items():
            if name in state:
                continue
            if shape == tuple(parameter.shape):
                state[name] = torch.zeros_like(parameter, dtype=dtype)
            else:
                state[name] = torch.zeros(shape, dtype=dtype, device=parameter.device)


def _put(state: dict[str, Any], numbers: Mapping[str, Number], device: torch.device) -> None:
    """Hold the numbers of another rank."""
    for name, (number, dtype, on_device) in numbers.items():
        if dtype is None:
            state[name] = number
        elif isinstance(state.get(name), Tensor):
            state[name].fill_(number)
        else:
            state[name] = torch.tensor(number, dtype=dtype, device=device if on_device else "cpu")

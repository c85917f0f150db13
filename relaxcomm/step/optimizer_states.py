"""What the optimizers of ranks that trained alone hold: made alike, to be averaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.replica import Replica
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Item, local

Place: TypeAlias = tuple[int, str]
"""An optimizer and a parameter."""
Number: TypeAlias = tuple[float, torch.dtype | None, bool]
"""Such as of steps; with its type if it is a tensor, and whether that is on a device."""
_EVENT = "the average of moments"


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
        """How often the parameter was stepped."""
        return _steps(self.numbers)


@dataclass(frozen=True)
class Moment:
    """A tensor of numbers that an optimizer holds of a parameter.

    Args:
        item: it, with a name.
        weight: by which this rank's goes into the mean, as some ranks have none.
    """

    item: Item
    weight: float


def moments(replica: Replica, world: World, names: Collection[str]) -> list[Moment]:
    """What the optimizers of all ranks hold of some parameters, after they were made alike.

    Of what some ranks have not begun, since they never used a parameter, the mean is that of the others: it
    need not begin at zero. Counts of steps are those of the rank that has made most.
    """
    found = _held(replica, names)
    told = cast("Sequence[dict[Place, _Held]]", world.gather(found, _EVENT))
    for place, parameter, states in states_of(replica, names):
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
        for place, parameter, states in states_of(replica, names)
        for name, value in sorted(states.get(parameter, {}).items())
        if len(set(shapes.get((place, name), ()))) == 1  # where ranks hold different ones there is no mean
    ]


def without_means(replica: Replica, world: World, names: Collection[str]) -> tuple[set[str], int]:
    """Parameters of which an optimizer holds what cannot be averaged, on any rank, and who has come farthest.

    Codes and their scales belong together, so all of such a state is one rank's; every process calls it.

    Returns: names, and the rank that holds states of most parameters, of such ranks the one with most steps.
    """
    found = [(place[1], states.get(one, {})) for place, one, states in states_of(replica, names)]
    mine = {name: (can_be_averaged(state), _steps(_numbers(state))) for name, state in found if state}
    told = cast("Sequence[dict[str, tuple[bool, float]]]", world.gather_all(mine, _EVENT))
    order = [(len(one), sum(steps for _, steps in one.values())) for one in told]
    root = order.index(max(order)) // world.shard.world_size
    return {name for one in told for name, (has_means, _) in one.items() if not has_means}, root


def states_of(
    replica: Replica, names: Collection[str]
) -> Iterator[tuple[Place, Tensor, dict[Any, dict[str, Any]]]]:
    """Some parameters of each optimizer, with what that holds of all of its own."""
    for index, optimizer in enumerate(replica.optimizers):
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for item in replica.parameters:
            if item.name in names and id(item.parameter) in stepped:
                yield (index, item.name), item.parameter, optimizer.state


def _steps(numbers: Mapping[str, Number]) -> float:
    """How often a parameter was stepped, where that is counted."""
    return numbers["step"][0] if "step" in numbers else -1.0


def _held(replica: Replica, names: Collection[str]) -> dict[Place, _Held]:
    found: dict[Place, _Held] = {}
    for place, parameter, states in states_of(replica, names):
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


def _is_moment(name: str, value: object, parameter: Tensor) -> bool:
    """Whether a value of a state is averaged: it holds numbers, not how many steps there were."""
    if not isinstance(value, Tensor) or name == "step":
        return False
    return _has_mean(value) and (value.dim() > 0 or value.shape == parameter.shape)


def _has_mean(tensor: Tensor) -> bool:
    """Whether a tensor's entries are numbers, which those of 8 bits are with a scale alone."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and tensor.itemsize > 1 and is_plain(local(tensor))


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has memory for each entry, and is not made of others, as quantised moments are."""
    return not hasattr(tensor, "__tensor_flatten__") and can_be_copied(tensor)


def can_be_averaged(state: Mapping[Any, Any]) -> bool:
    """Whether all that an optimizer holds of a parameter is moments, and numbers that it counts."""
    return all(
        _has_mean(value) or not value.dim()
        if isinstance(value, Tensor)
        else value is None or isinstance(value, int | float)
        for value in state.values()
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

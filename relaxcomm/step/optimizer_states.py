"""What the optimizers of ranks that trained alone hold: made alike, so that it can be averaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from relaxcomm.replica.replica import Replica
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Item, local

Place: TypeAlias = tuple[int, str]
"""An optimizer and a parameter."""
_EVENT = "the average of moments"


@dataclass
class _Held:
    """What a rank's optimizer holds of a parameter.

    Args:
        moments: shape and type of tensors that are averaged, by name.
        numbers: such as of its steps, and on which device if they are tensors.
    """

    moments: dict[str, tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    numbers: dict[str, tuple[float, torch.dtype | None, bool]] = field(default_factory=dict)

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


def moments(replica: Replica, world: World) -> list[Moment]:
    """What the optimizers of all ranks hold, after they were made alike.

    Of what some ranks have not begun, since they never used a parameter, the mean is that of the others: it
    need not begin at zero. Counts of steps are those of the rank that has made most.
    """
    found = _held(replica)
    told = cast("Sequence[dict[Place, _Held]]", world.gather(found, _EVENT))
    for place, parameter, states in _states(replica):
        theirs = [one[place] for one in told if place in one]
        if theirs:
            _begin(states[parameter], parameter, theirs)
            _count(states[parameter], parameter, max(theirs, key=lambda one: one.steps))
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
        for place, parameter, states in _states(replica)
        for name, value in sorted(states.get(parameter, {}).items())
        if len(set(shapes.get((place, name), ()))) == 1  # where ranks hold different ones there is no mean
    ]


def _states(replica: Replica) -> Iterator[tuple[Place, Tensor, dict[Any, dict[str, Any]]]]:
    """Each parameter of each optimizer, with what that holds of all of its own."""
    for index, optimizer in enumerate(replica.optimizers):
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for item in replica.parameters:
            if id(item.parameter) in stepped:
                yield (index, item.name), item.parameter, optimizer.state


def _held(replica: Replica) -> dict[Place, _Held]:
    found: dict[Place, _Held] = {}
    for place, parameter, states in _states(replica):
        held = _Held()
        for name, value in states.get(parameter, {}).items():
            if _is_moment(name, value, parameter):
                held.moments[name] = tuple(value.shape), value.dtype
            elif isinstance(value, Tensor) and value.dim() == 0:
                held.numbers[name] = value.item(), value.dtype, value.device.type != "cpu"
            elif isinstance(value, int | float):
                held.numbers[name] = value, None, False
        if states.get(parameter):
            found[place] = held
    return found


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


def _count(state: dict[str, Any], parameter: Tensor, farthest: _Held) -> None:
    """Count steps as the rank that has made most."""
    for name, (number, dtype, on_device) in farthest.numbers.items():
        if dtype is None:
            state[name] = number
        elif isinstance(state.get(name), Tensor):
            state[name].fill_(number)
        else:
            state[name] = torch.tensor(number, dtype=dtype, device=parameter.device if on_device else "cpu")

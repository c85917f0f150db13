"""What the optimizers of ranks that trained alone hold: made alike, to be averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relaxcomm.errors import ConfigError
from relaxcomm.replica.named_parameters import parameters_of
from relaxcomm.replica.replica import Replica
from relaxcomm.step.held_states import Held, Number, have_means, is_moment
from relaxcomm.step.world import World
from relaxcomm.tensors.items import Item, local

_EVENT = "the average of moments"


def make_alike(replica: Replica, world: World, names: Collection[str]) -> dict[str, float]:
    """Have the optimizers of all ranks hold the same kinds of moments of some parameters.

    Of what some ranks have not begun, since they never used a parameter, the mean is that of the others: it
    need not begin at zero. Counts of steps are those of the rank that has made most.

    Returns: by which weight each of this rank's moments goes into the mean, by name.
    """
    found = _held(replica, names)
    told = world.gather(found, _EVENT)
    for key, parameter, states in states_of(replica, names):
        theirs = [one[key] for one in told if key in one]
        if theirs:
            _begin(states[parameter], parameter, theirs)
            farthest = max(theirs, key=lambda one: one.steps)
            _put(states[parameter], farthest.numbers, parameter.device)
    mine, begun = _moments_in(found), Counter(name for one in told for name in _moments_in(one))
    return {name: (name in mine) * world.size / ranks for name, ranks in begun.items()}


def _moments_in(held: Mapping[str, Held]) -> set[str]:
    return {_named(name, key) for key, one in held.items() for name in one.moments}


def _named(name: object, key: str) -> str:
    return f"{name} of {key}"


def moments(replica: Replica, names: Collection[str]) -> list[Item]:
    """What this rank's optimizers hold of some parameters that is averaged."""
    return [
        Item(_named(name, key), local(value))
        for key, parameter, states in states_of(replica, names)
        for name, value in sorted(states.get(parameter, {}).items(), key=lambda held: str(held[0]))
        if is_moment(name, value, parameter)
    ]


def without_means(replica: Replica, world: World, names: Collection[str]) -> tuple[set[str], int]:
    """Parameters of which an optimizer holds what cannot be averaged, on any rank, and who has come farthest.

    Codes and their scales belong together, so all of such a state is one rank's, as where moments have other
    shapes; every process calls it.

    Returns: names, and the rank that holds states of most parameters, of such ranks the one with most steps.
    """
    told = world.gather_all(_held(replica, names), _EVENT)
    order = [(len(one), sum(held.steps for held in one.values())) for one in told]
    size = world.shard.world_size
    alike = [told[shard::size] for shard in range(size)]  # whose moments have the same shapes
    copied = {
        key
        for ranks in alike
        for key in {key for one in ranks for key in one}
        if not have_means(one[key] for one in ranks if key in one)
    }
    return copied, order.index(max(order)) // size


def states_of(
    replica: Replica, names: Collection[str]
) -> Iterator[tuple[str, Tensor, dict[Any, dict[str, Any]]]]:
    """Some parameters by name, with what the one optimizer that steps each holds of all of its own.

    They come in the model's order, which is the same on all ranks: optimizers may list them in others.

    Raises: ConfigError where it holds no dict of one.
    """
    holders = {p: optimizer.state for optimizer in replica.optimizers for p in parameters_of(optimizer)}
    for item in replica.parameters:
        if item.name not in names or item.parameter not in holders:
            continue
        states = holders[item.parameter]
        if not isinstance(held := states.get(item.parameter, {}), Mapping):
            raise ConfigError(
                f"the optimizer keeps a {type(held).__name__} of {item.name}, which ranks cannot make "
                "alike; let it keep a dict by names, as torch's optimizers do"
            )
        yield item.name, item.parameter, states


def _held(replica: Replica, names: Collection[str]) -> dict[str, Held]:
    return {
        key: Held.of(state, parameter)
        for key, parameter, states in states_of(replica, names)
        if (state := states.get(parameter))
    }


def _begin(state: dict[str, Any], parameter: Tensor, theirs: Sequence[Held]) -> None:
    """Hold zeros of what others have begun."""
    for one in theirs:
        for name, (shape, dtype) in one.moments.items():
            if state.get(name) is not None:
                continue
            if shape == parameter.shape:
                state[name] = torch.zeros_like(parameter, dtype=dtype)
            else:
                state[name] = torch.zeros(shape, dtype=dtype, device=parameter.device)


def _put(state: dict[str, Any], numbers: Mapping[str, Number], device: torch.device) -> None:
    """Hold the numbers of another rank."""
    for name, (number, shape, dtype, on_device) in numbers.items():
        if dtype is None:
            state[name] = number
        elif isinstance(state.get(name), Tensor):
            state[name].fill_(number)
        else:
            state[name] = torch.full(shape, number, dtype=dtype, device=device if on_device else "cpu")

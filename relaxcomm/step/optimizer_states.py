"""What the optimizers of ranks that trained alone hold: made alike, to be averaged."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.errors import ConfigError
from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.named_parameters import Named
from relaxcomm.replica.replica import Replica
from relaxcomm.step.world import World
from relaxcomm.tensors.digest import checksum
from relaxcomm.tensors.items import Item, local

Number: TypeAlias = tuple[float, torch.Size, torch.dtype | None, bool]
"""Such as of steps; with its shape and type if it is a tensor, and whether that is on a device."""
_EVENT = "the average of moments"


@dataclass(frozen=True)
class Held:
    """What a rank's optimizer holds of a parameter.

    Args:
        moments: shape and type of tensors that are averaged, by name.
        numbers: such as of its steps.
        is_more: whether there is more, such as codes.
    """

    moments: dict[str, tuple[torch.Size, torch.dtype]]
    numbers: dict[str, Number]
    is_more: bool

    @classmethod
    def of(cls, state: Mapping[str, Any], parameter: Tensor) -> Held:
        """What is held in an optimizer's state of a parameter."""
        moments = {
            name: (value.shape, value.dtype)
            for name, value in state.items()
            if _is_moment(name, value, parameter)
        }
        rest = {name: value for name, value in state.items() if name not in moments}
        numbers = _numbers(rest)
        return cls(moments, numbers, any(v is not None for k, v in rest.items() if k not in numbers))

    @property
    def steps(self) -> float:
        """How often the parameter was stepped, where that is counted."""
        return self.numbers["step"][0] if "step" in self.numbers else -1.0


def have_means(told: Iterable[Held]) -> bool:
    """Whether what ranks hold of a parameter is but numbers, and moments of the same shapes and types."""
    told, kinds = list(told), dict[str, tuple[torch.Size, torch.dtype]]()
    numbers = {name for one in told for name in one.numbers}
    return all(
        not one.is_more
        and not numbers & one.moments.keys()  # a rank may hold a number in its place until it has begun
        and all(kinds.setdefault(name, kind) == kind for name, kind in one.moments.items())
        for one in told
    )


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
        if _is_moment(name, value, parameter)
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


def fingerprint(optimizers: Iterable[Optimizer], named: Named) -> str | None:
    """Differs where what optimizers hold of their parameters does; None where that is more than numbers.

    The host waits for each device once.

    Args:
        optimizers: which may list the parameters in another order on each rank.
        named: the model's parameters, in the order in which states are looked at; others come last.
    """
    places = {id(parameter): place for place, (_, parameter) in enumerate(named)}
    held = [
        (places.get(id(parameter), len(places)), optimizer.state.get(parameter, {}))
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    kinds: list[object] = []
    sums: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
    for place, state in sorted(held, key=itemgetter(0)):
        if not isinstance(state, Mapping):  # as None, which ZeroRedundancyOptimizer has where others step
            return None
        for name in sorted(state, key=str):
            value = state[name]
            if isinstance(value, Tensor) and (_has_mean(value) if value.dim() else is_plain(local(value))):
                kinds.append((place, name, value.shape, value.dtype))
                sums[value.device].append(checksum(local(value)))
            elif value is None or isinstance(value, int | float):
                kinds.append((place, name, value))
            else:
                return None
    told = repr((kinds, [torch.stack(found).tolist() for found in sums.values()]))
    return hashlib.sha256(told.encode()).hexdigest()


def states_of(
    replica: Replica, names: Collection[str]
) -> Iterator[tuple[str, Tensor, dict[Any, dict[str, Any]]]]:
    """Some parameters by name, with what the one optimizer that steps each holds of all of its own.

    They come in the model's order, which is the same on all ranks: optimizers may list them in others.

    Raises: ConfigError where it holds no dict of one.
    """
    holders: dict[Tensor, dict[Any, dict[str, Any]]] = {
        one: optimizer.state
        for optimizer in replica.optimizers
        for group in optimizer.param_groups
        for one in group["params"]
    }
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


def _numbers(values: Mapping[str, Any]) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and (not value.dim() or (name == "step" and value.numel() == 1)):
            found[name] = value.item(), value.shape, value.dtype, value.device.type != "cpu"
        elif isinstance(value, int | float):
            found[name] = value, torch.Size(), None, False
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
    return can_be_copied(tensor) and not (tensor.is_meta or hasattr(tensor, "__tensor_flatten__"))


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

"""What an optimizer holds of a parameter: moments that have means, numbers such as of steps, or more."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.named_parameters import Named, parameters_of
from relaxcomm.tensors.digest import checksum
from relaxcomm.tensors.items import local

Number: TypeAlias = tuple[float, torch.Size, torch.dtype | None, bool]
"""Such as of steps; with its shape and type if it is a tensor, and whether that is on a device."""


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
            if is_moment(name, value, parameter)
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
        for parameter in parameters_of(optimizer)
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


def is_moment(name: str, value: object, parameter: Tensor) -> bool:
    """Whether a value of a state is averaged: it holds numbers, not how many steps there were."""
    if not isinstance(value, Tensor) or name == "step":
        return False
    return _has_mean(value) and (value.dim() > 0 or value.shape == parameter.shape)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has memory for each entry, and is not made of others, as quantised moments are."""
    return can_be_copied(tensor) and not (tensor.is_meta or hasattr(tensor, "__tensor_flatten__"))


def _numbers(values: Mapping[str, Any]) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and (not value.dim() or (name == "step" and value.numel() == 1)):
            found[name] = value.item(), value.shape, value.dtype, value.device.type != "cpu"
        elif isinstance(value, int | float):
            found[name] = value, torch.Size(), None, False
    return found


def _has_mean(tensor: Tensor) -> bool:
    """Whether a tensor's entries are numbers, which those of 8 bits are with a scale alone."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and tensor.itemsize > 1 and is_plain(local(tensor))

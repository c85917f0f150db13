"""What the optimizers keep of each client that this rank plays, of whom one is in use at a time."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.replica.sharding import held, loaded
from relaxcomm.tensors.items import Item


class ClientOptimizers:
    """Each client's own states of the optimizers."""

    def __init__(self, parameters: Sequence[Item], optimizers: Sequence[Optimizer]) -> None:
        self._parameters, self._optimizers = parameters, optimizers
        self._states: dict[int, list[defaultdict[Tensor, Any]]] = {}  # one an optimizer

    def put_in(self, client: int) -> None:
        """Let the optimizers go on from a client's states."""
        for optimizer, state in zip(self._optimizers, self._of(client), strict=True):
            optimizer.state = state

    def keep(self, names: Mapping[int, int]) -> None:
        """Forget the states of all other clients; those that are kept may have another number from now on."""
        kept = self._states
        self._states = {new: kept[old] for old, new in names.items() if old in kept}

    def export(self) -> dict[int, dict[str, Any]]:
        """Each client's state by the names of the parameters."""
        names = {item.parameter: item.name for item in self._parameters}
        return {
            client: {
                names[p]: copy.deepcopy(held(one)) for kept in states for p, one in kept.items() if p in names
            }
            for client, states in self._states.items()
        }

    def restore(self, saved: Mapping[int, Mapping[str, Any]]) -> None:
        """Put exported states back."""
        tensors = {item.name: item.parameter for item in self._parameters}
        for client, states in saved.items():
            for optimizer, kept in zip(self._optimizers, self._of(client), strict=True):
                groups = {p: group for group in optimizer.param_groups for p in group["params"]}
                for name, values in states.items():
                    if (parameter := tensors[name]) in groups:
                        kept[parameter].update(_placed(values, parameter, groups[parameter]))

    def _of(self, client: int) -> list[defaultdict[Tensor, Any]]:
        return self._states.setdefault(client, [defaultdict(dict) for _ in self._optimizers])


def _placed(values: Mapping[str, Any], parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state where its optimizer keeps it; most count steps on the host."""
    counts_there = group.get("capturable") or group.get("fused")

    def placed(key: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if key == "step" and not counts_there:
            return value.to("cpu", copy=True)
        return loaded(parameter, value.to(parameter.device, copy=True))

    return {key: placed(key, value) for key, value in values.items()}

"""A model that one rank sends to others, or saves; each may have compiled its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from relaxcomm.errors import ConfigError
from relaxcomm.replica.named_parameters import named_buffers, plain
from relaxcomm.tensors.items import Item


def state(model: nn.Module) -> dict[str, Any]:
    """What `state_dict` has, by `plain` names."""
    return {plain(name): value for name, value in model.state_dict().items()}


def load(model: nn.Module, sent: Mapping[str, Any]) -> None:
    """Load what `state` has made on another rank, or in another run.

    Raises: ConfigError, before anything has changed, where the models hold different names.
    """
    held = model.state_dict()
    own = {plain(name): name for name in held}
    for name in [*own, *sent]:
        if name not in own or name not in sent:
            where = "on this rank, and not" if name in own else "not on this rank, but"
            raise ConfigError(
                f"the model's state_dict has {name} {where} on the rank that sends its own; register the "
                "same on all ranks (a buffer under register_buffer(…, persistent=False) stays on its rank)"
            )
    for name, buffer in named_buffers(model):
        if name in sent and sent[name].shape != held[own[name]].shape:  # it has grown there since attach
            buffer.data = buffer.new_empty(sent[name].shape)
    # Modules' versions stay beside them, and what both hold.
    held.update({own[name]: value for name, value in sent.items() if value is not None})
    model.load_state_dict(held)


def values(parameters: Iterable[Item]) -> dict[str, Tensor]:
    """Parameters by name, also those that a `state_dict` of the model's own leaves out."""
    return {item.name: item.parameter.detach() for item in parameters}


def fill(parameters: Iterable[Item], sent: Mapping[str, Tensor]) -> None:
    """Have parameters hold what `values` has made on another rank, of all or some of them."""
    with torch.no_grad():
        for item in parameters:
            if item.name in sent:
                item.parameter.copy_(sent[item.name])

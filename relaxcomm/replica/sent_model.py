"""The state of a model that one rank sends to others, of whom each may have compiled its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from relaxcomm.errors import ConfigError
from relaxcomm.replica.named_parameters import plain


def state(model: nn.Module, *, buffers: bool) -> dict[str, Any]:
    """What `state_dict` has, by the names before `torch.compile`.

    Args:
        model: of this rank.
        buffers: whether with them.
    """
    held = model.state_dict()
    return {name: held[own] for name, own in _own_names(model, held, buffers=buffers).items()}


def load(model: nn.Module, sent: Mapping[str, Any], *, buffers: bool) -> None:
    """Load what `state` has made on another rank; without buffers those here stay.

    Raises: ConfigError, before anything has changed, where the models hold different names.
    """
    held = model.state_dict()
    own = _own_names(model, held, buffers=buffers)
    for name in [*own, *sent]:
        if name not in own or name not in sent:
            where = "on this rank, and not" if name in own else "not on this rank, but"
            raise ConfigError(
                f"the model's state_dict has {name} {where} on the rank that sends its own; register the "
                "same on all ranks (a buffer under register_buffer(…, persistent=False) stays on its rank)"
            )
    for name in held.keys() - own.values():
        del held[name]
    held.update({own[name]: value for name, value in sent.items()})  # modules' versions stay beside them
    model.load_state_dict(held, strict=buffers)


def _own_names(model: nn.Module, held: Mapping[str, Any], *, buffers: bool) -> dict[str, str]:
    """The names in this rank's `state_dict`, by those before `torch.compile`."""
    left_out = set() if buffers else {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {plain(name): name for name in held if name not in left_out}

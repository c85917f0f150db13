"""A state as text and named tensors, so that it can be read without running anybody's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relaxcomm.errors import ConfigError


def split(name: str, state: Any, *, copy: bool) -> tuple[Any, dict[str, Tensor]]:
    """Part a nested state into what is plain and its tensors.

    Args:
        name: which the tensors' names begin with.
        state: tensors, numbers and strings in lists, tuples and mappings.
        copy: whether the tensors may still change; else those on the CPU are taken as they are.

    Returns: what `join` takes: a value that JSON can hold, and tensors on the CPU by name.

    Raises: ConfigError, naming it, for anything else, which only unpickling could make again.
    """
    parting = _Parting(copy)
    return parting.part(name, state), parting.tensors


def join(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `split`."""
    if isinstance(plain, list):
        return [join(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, value),) = plain.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "tuple":
        return tuple(join(item, tensors) for item in value)
    if kind == "dict":
        return {key: join(item, tensors) for key, item in value}
    if kind == "dtype":
        return _dtype(value)
    raise ValueError(f"{kind!r} is no kind of value")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


class _Parting:
    """Parts one state; a tensor that lies in it twice, such as a tied weight, is taken once."""

    def __init__(self, copy: bool) -> None:
        self._copy = copy
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[tuple[Any, ...], str] = {}

    def part(self, path: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return {"tensor": self._take(path, value)}
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Mapping):
            wrong = [key for key in value if not isinstance(key, str | int)]
            if not wrong:
                return {"dict": [[key, self.part(f"{path}.{key}", item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            items = [self.part(f"{path}.{index}", item) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        raise ConfigError(
            f"{path} is a {type(value).__name__}, which a checkpoint cannot hold: it is read without running "
            "anybody's code; let its state_dict() give tensors, numbers and strings in lists and dicts"
        )

    def _take(self, path: str, tensor: Tensor) -> str:
        tensor = tensor.detach()
        if tensor.is_quantized:
            raise ConfigError(
                f"{path} is a quantized tensor, which torch's checkpoints do not give back; keep its "
                "int_repr(), and its scale and zero point as numbers"
            )
        memory = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
        if tensor.numel() and memory in self._known:
            return self._known[memory]
        while path in self.tensors:  # keys such as 1 and "1"
            path += "'"
        self._known[memory] = path
        self.tensors[path] = tensor.to("cpu", copy=self._copy)
        return path

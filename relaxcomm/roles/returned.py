"""What primitives return, looked at where it comes in: by its attributes alone, so no GPU is waited for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relaxcomm.fields.looked_at import error
from relaxcomm.roles.context import Primitive
from relaxcomm.roles.controller import Controller
from relaxcomm.tensors.messages import Message, Sparse

_WANTED = {
    "read": "what is exchanged, [numel + extra_entries]",
    "run": "the combined result, [numel]",
    "encode_decode": "the pair (result, sent), the first of which is what was decoded, [numel]",
    "finalize": "the payload's result, [numel]",
    "apply": "the new value, [numel]",
}


def entries(
    value: object, numel: int, method: str, *primitives: Primitive, dtype: torch.dtype | None = None
) -> Tensor:
    """What a method has returned, contiguous: those who make views of it count on that.

    Args:
        value: that.
        numel: how many entries it should have.
        method: its name.
        primitives: whose, and what it worked with.
        dtype: that it should have; by default any of floating-point numbers.

    Raises: PluginError unless it is such.
    """
    if (
        isinstance(value, Tensor)
        and value.ndim == 1
        and value.numel() == numel
        and (value.is_floating_point() or value.is_complex())
        and dtype in (None, value.dtype)
    ):
        return value.contiguous()
    kind = "floating point" if dtype is None else dtype
    raise error(value, f"return {_WANTED[method]} = [{numel}], {kind}", method, *primitives)


def added(total: Tensor | None, value: object, method: str, primitive: Primitive) -> Tensor:
    """The sum, in float64, of the few numbers that a method returns for each bucket.

    Args:
        total: that of the buckets before, or None.
        value: what it has returned for this one.
        method: its name.
        primitive: whose.

    Raises: PluginError unless it is `[k]`, the same k for all buckets.
    """
    if isinstance(value, Tensor) and value.ndim == 1 and (total is None or len(total) == len(value)):
        return value.double() if total is None else total + value.to(total)
    k = "[k]" if total is None else f"[k] = [{len(total)}] as for the bucket before"
    raise error(value, f"return a few numbers, {k}", method, primitive)


def is_yes(value: object, method: str, trigger: Primitive) -> bool:
    """What `vote` or `fires` has returned.

    Raises: PluginError unless it is true or false: None is what a method gives that forgets to return.
    """
    one = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if isinstance(one, Tensor) or one not in (True, False):
        raise error(value, "return True or False", method, trigger)
    return bool(one)


def written(value: object, controller: Controller) -> Mapping[str, float]:
    """What `decide` has returned.

    Args:
        value: that.
        controller: whose; it writes what `init_values` gives, and what it needs, such as `batch_size`.

    Raises: PluginError unless it is a mapping of names of these to finite numbers.
    """
    if not isinstance(value, Mapping):
        raise error(value, "return new values by name, {} to leave all", "decide", controller)
    names = controller.facts.needs | set(controller.init_values())
    if not set(value) <= names:
        allowed = f"no other names than init_values gives and facts.needs has: {sorted(names)}"
        raise error(value, f"return {allowed}", "decide", controller)
    if not all(_is_finite(number) for number in value.values()):
        raise error(value, "return finite numbers, int or float", "decide", controller)
    return value


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def chosen(value: object, planner: Primitive) -> tuple[Any, str]:
    """What `choose` has returned.

    Raises: PluginError unless it is a pair.
    """
    if isinstance(value, tuple) and len(value) == 2:
        return value
    raise error(value, "return the pair (algorithm, reason)", "choose", planner)


def yielded(value: object, kinds: frozenset[str], compressor: Primitive) -> Message:
    """What `encode_decode` has yielded.

    Raises: PluginError unless it is a message of one of these kinds.
    """
    if isinstance(value, Message) and value.kind in kinds:
        return value
    wanted = f"yield a message that is {' or '.join(sorted(kinds))}, as its facts say"
    raise error(value, wanted, "encode_decode yielded", compressor)


def decoded(
    value: object, numel: int, compressor: Primitive, *, keep_sent: bool
) -> tuple[Tensor, Tensor | Sparse | None]:
    """The pair that `encode_decode` has returned.

    Raises: PluginError if that is no pair, or if the result, its first, is not as `entries` wants it.
    """
    kind = Tensor | Sparse if keep_sent else object
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], kind):
        what_was_sent = ", of which the second is what was sent, as keep_sent asks" if keep_sent else ""
        raise error(value, f"return the pair (result, sent){what_was_sent}", "encode_decode", compressor)
    result, sent = value
    return entries(result, numel, "encode_decode", compressor), sent

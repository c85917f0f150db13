"""Payloads: what a rule exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.fields.frozen import Threshold, frozen
from relaxcomm.roles import Context, Payload, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.precision import wide

ANCHOR = "anchor"


def _take_in(bucket: Bucket, value: Tensor, snapshot: Tensor | None) -> None:
    """Make a value the parameters or, if it comes late, keep what they have moved since the snapshot."""
    if snapshot is None:
        bucket.scatter(value)
    else:
        bucket.add(torch.sub(value, snapshot, out=snapshot))


@frozen
class gradients(Payload):
    """The gradients, bucket by bucket while backward goes on; the result becomes `.grad`.

    With a GradScaler they are exchanged unscaled, `g / scale`, since workers may hold different
    scales, and rescaled when written.

    Example:
        >>> gradients()
        gradients()
    """

    site: ClassVar[Literal["backward", "step"]] = "backward"

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        if cx.gradient_scale is not None:
            out.div_(cx.gradient_scale)
        return out

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        if cx.gradient_scale is not None:
            value.mul_(cx.gradient_scale)


@frozen
class parameters(Payload):
    """The parameters, after the optimizer's step.

    A result that comes `delay` steps late keeps the progress made meanwhile:
    `p <- p + (result - p at the time of reading)`.

    Example:
        >>> parameters()
        parameters()
    """

    site: ClassVar[Literal["backward", "step"]] = "step"
    averages_buffers: ClassVar[bool] = True
    is_model: ClassVar[bool] = True

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.gather(out)

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        _take_in(bucket, value, snapshot)


@frozen
class deltas(Payload):
    """What the parameters have moved since the last exchange, `anchor - p` (a pseudo-gradient).

    The anchor is a copy of the parameters as they were after the last exchange, the same on all
    ranks. The outer optimizer moves it by the combined deltas; the parameters follow:
    `p <- anchor`, or `p <- (1 - merge) anchor + merge p`, or, when the result comes late and
    `merge` is None, `p <- p + (anchor - p at the time of reading)`.

    Args:
        merge: weight of the local parameters when the result is written, in [0, 1].

    Example:
        >>> deltas(merge=0.5)
        deltas(merge=0.5)

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """

    merge: Annotated[float, Field(ge=0, le=1)] | None = None

    site: ClassVar[Literal["backward", "step"]] = "step"
    has_base: ClassVar[bool] = True
    averages_buffers: ClassVar[bool] = True

    @property
    def keeps_local(self) -> bool:
        return bool(self.merge)

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {ANCHOR: bucket.copy()}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.subtract_from(state[ANCHOR], out)

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor | None:
        return state[ANCHOR]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        state[ANCHOR] = value
        if self.merge is not None:
            bucket.scatter(torch.lerp(value, bucket.copy(), self.merge))
        else:
            _take_in(bucket, value, snapshot)


@frozen
class client_deltas(Payload):
    """What a round's clients have moved, by their samples: `sum_k n_k (anchor - w_k) / sum_k n_k`.

    Each client starts from the anchor; when it ends, its move is added up and the next one starts.
    FedProx's term `proximal (w - anchor)` is added to its gradients just before each optimizer step.

    Args:
        proximal: mu, 0 or more.

    Example:
        >>> client_deltas(proximal=0.1)
        client_deltas(proximal=0.1)

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """

    proximal: Threshold = 0.0

    site: ClassVar[Literal["backward", "step"]] = "step"
    has_base: ClassVar[bool] = True
    has_weight: ClassVar[bool] = True
    needs_event: ClassVar[str | None] = "round"
    averages_buffers: ClassVar[bool] = True

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        weight = torch.zeros(1, dtype=wide(bucket.dtype), device=bucket.device)
        return {ANCHOR: bucket.copy(), "moved": bucket.zeros(), "weight": weight}

    def before_step(self, cx: Context, bucket: Bucket, state: State) -> None:
        if not self.proximal:
            return
        for item, anchor in zip(bucket.items, bucket.views(state[ANCHOR]), strict=True):
            if item.tensor.grad is not None:
                item.tensor.grad.add_(item.tensor.detach() - anchor, alpha=self.proximal)

    def event(
        self, cx: Context, bucket: Bucket, state: State, event: str, facts: Mapping[str, float]
    ) -> None:
        if event == "client":
            samples = float(facts["samples"])
            moved = bucket.subtract_from(state[ANCHOR], bucket.temporary())
            state["moved"] = torch.add(state["moved"], moved, alpha=samples)
            state["weight"] = state["weight"] + samples
            bucket.scatter(state[ANCHOR])

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return torch.cat([state["moved"], state["weight"]]).to(bucket.dtype)

    def settle(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        if not result[-1] > 0:
            raise UsageError(
                'a round has ended in which no client has: call engine.mark("client", samples=…) at each '
                "client's end, or take the batches from engine.loader, which does"
            )
        return result[:-1] / result[-1]

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor | None:
        return state[ANCHOR]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        state[ANCHOR], state["moved"] = value, bucket.zeros()
        state["weight"] = torch.zeros_like(state["weight"])
        bucket.scatter(value)

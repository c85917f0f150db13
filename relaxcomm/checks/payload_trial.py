"""A payload on trial: it reads, is told of events and writes, beside no model and no ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.checks.conduct import Values, WatchedSlots
from relaxcomm.checks.round_trip import context
from relaxcomm.data.clients import ROUND_GIVEN_UP, ROUND_LEFT
from relaxcomm.roles import Payload
from relaxcomm.roles.payload import finalized, read
from relaxcomm.roles.returned import added
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.unshared import UnsharedState

NUMEL = 12


class PayloadTrial:
    """A payload with a bucket of two tensors, or of one entry, and its slots.

    Args:
        payload: what is tried.
        value: of the first parameter; no two are alike, as a constant gradient's entries are, and sums exact.
        dtype: of all.
        numel: entries of the bucket.
        samples: on which this rank has trained.
    """

    def __init__(
        self,
        payload: Payload,
        value: float = 1.0,
        dtype: torch.dtype = torch.float32,
        numel: int = NUMEL,
        samples: int = 4,
    ) -> None:
        self._payload, self._numel = payload, numel
        one, *others = (value + torch.arange(numel) / 16).to(dtype).chunk(2)
        tensors = [one.view(-1, 3) if others else one, *others]
        self.bucket = Bucket(0, [Item(name, one) for name, one in zip("ab", tensors, strict=False)])
        kept: list[Tensor | None] = [one.clone() for one in tensors]  # an optimizer's, as it began
        self.cx = context().at(samples=samples, optimizer_state=lambda bucket, slots: kept)
        self.state = WatchedSlots(payload.init(self.bucket), repr(payload))

    @property
    def parameters(self) -> Tensor:
        return self.bucket.copy()

    def moved(self, by: float | Tensor) -> PayloadTrial:
        """Move the parameters as an optimizer's step does; returns itself."""
        self.stepped()
        self.bucket.scatter(self.parameters + by)
        for event in heard(self._payload) if self._payload.facts.event is not None else ():
            self.tell(event)
        return self

    def tell(self, event: str) -> None:
        """Tell it of an event, with whatever numbers it asks for."""
        facts = Values(4.0, {"samples": self.cx.samples})
        self._payload.event(self.cx, self.bucket, self.state, event, facts)

    def stepped(self, scale: float = 1.0) -> Tensor:
        """What gradients of 1, which a GradScaler has made as large, are just before the optimizer's step."""
        gradients = [torch.full_like(one, scale) for one in self.bucket.tensors]
        for item, gradient in zip(self.bucket.items, gradients, strict=True):
            item.tensor.grad = gradient
        cx = self.cx.at(gradient_scale=None if scale == 1 else torch.tensor(scale))
        self._payload.before_step(cx, self.bucket, self.state)
        return torch.cat([one.flatten() for one in gradients])

    def read(self, gradient: float | Tensor) -> Tensor:
        """What is exchanged."""
        out = torch.ones(self._numel, dtype=self.bucket.dtype) * gradient
        cx = self.cx
        if self._payload.measures:
            found = self._payload.measure(cx, self.bucket, self.state)
            cx = cx.at(measured=added(None, found, "measure", self._payload))
        return read(self._payload, cx, self.bucket, self._kept(out), out).clone()

    def finalize(self, result: Tensor) -> Tensor:
        """What is made of a combined result."""
        return finalized(self._payload, self.cx, self.bucket, self._kept(result), result)

    def base(self) -> Tensor | None:
        """The point from which an outer moves, as it is now."""
        base = self._payload.base(self.cx, self.bucket, self.state)
        return None if base is None else base.clone()

    def write(self, value: float | Tensor) -> Tensor:
        """The parameters after a value is written."""
        self.gradient(torch.zeros(NUMEL) + value)
        return self.parameters

    def gradient(self, value: Tensor) -> Tensor:
        """What `write` leaves in a value, which becomes `.grad` if it does not move the parameters."""
        value = value.clone()
        lent = [value] if self._payload.facts.site == "backward" else []
        self._payload.write(self.cx, self.bucket, self._kept(*lent), value, None)
        return value

    def _kept(self, *lent: Tensor) -> UnsharedState:
        """The slots, which keep a copy of what is lent, as those of an engine do."""
        return UnsharedState(self.state, *lent, self.bucket)


def heard(payload: Payload) -> list[str]:
    """The events of which it may take note, but for those of a round that has failed."""
    return sorted(payload.facts.hears - {ROUND_LEFT, ROUND_GIVEN_UP})

"""The gradients of one bucket that come in a later step than they were sent in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.replica.gradient_in_place import GradientInPlace
from relaxcomm.step.bound import Bound
from relaxcomm.step.device_flags import PutIn
from relaxcomm.step.transfer import Transfer
from relaxcomm.tensors.buckets import Bucket


class LateGradients:
    """Holds gradients that are on their way from step to step, with what each step has used."""

    def __init__(self, bucket: Bucket, buffer: GradientBuffer | GradientInPlace, bound: Bound) -> None:
        self._bucket, self._buffer, self._bound = bucket, buffer, bound
        self._flying: deque[Transfer] = deque()

    def __len__(self) -> int:
        return len(self._flying)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._flying)

    def due(self) -> list[Transfer]:
        """Those whose step this is, in which they land."""
        step = self._bound.clock.step
        return [late for late in self._flying if late.due <= step] if self._flying else []

    def oldest(self) -> Transfer:
        """The one that was sent first."""
        return self._flying[0]

    def send(self, transfer: Transfer, not_finite: Sequence[str] | PutIn) -> None:
        """Send what the buffer holds.

        Args:
            transfer: of the bucket.
            not_finite: what of it is not, or how to learn that from a GPU.
        """
        message = self._buffer.whole if transfer.task.carries_flags else self._buffer.main
        transfer.read(self._buffer.main)
        transfer.uses_all = not self._buffer.unused
        transfer.launch(transfer.exchange(message.clone()), self._bound.clock.step, not_finite=not_finite)
        self._flying.append(transfer)

    def land(self, late: Transfer, *, replaces_own: bool) -> Tensor:
        """Take one from here, waiting for it; what any rank used when it was sent gets a `.grad`.

        Args:
            late: of these.
            replaces_own: whether this step's own gradients are sent, so that what nobody used then has none.
        """
        self._flying.remove(late)
        numel, result = self._bucket.numel, self._with_flags(late)
        into = self._bucket.temporary()  # what an outer optimizer returns may be its slot
        value = late.apply(late.finalize(result[:numel]), into=into)
        if result.numel() > numel and (self._buffer.unused or not late.uses_all):
            used = result[numel:].tolist()
            self._buffer.expose_used(used)
            if late.task.carries_flags and replaces_own:
                for item, is_used in zip(self._bucket.items, used, strict=True):
                    if not is_used:  # though this rank may have by now
                        item.parameter.grad = None
        return value

    def note_used(self, used: Tensor) -> None:
        """Which parameters any rank has used in this step, for what left in it."""
        for late in self._flying:
            if late.sent == self._bound.clock.step and not late.task.carries_flags:
                late.used = used

    def forget_sent_now(self) -> None:
        """Let go of what was sent in this step."""
        self._flying = deque(late for late in self._flying if late.sent != self._bound.clock.step)

    def export(self, is_loaded: bool) -> list[list[object]]:
        """As a checkpoint keeps them, on the host, once they have landed."""
        return [
            [
                late.due,
                late.task.index,
                self._bucket.index,
                self._with_flags(late, is_loaded).to("cpu", copy=True),
                *late.counts,
            ]
            for late in self._flying
        ]

    def restore(self, due: float, index: int, result: Tensor, counts: Sequence[int]) -> None:
        """Put one back that a checkpoint has saved."""
        tasks = self._bound.plan.of_bucket(self._bucket, "backward")
        task = next(task for task in tasks if task.index == index)
        self._flying.append(Transfer.landed(self._bound, task, due=due, counts=counts, result=result))

    def _with_flags(self, late: Transfer, is_loaded: bool = False) -> Tensor:
        """A late result with the flags of its step behind it; waits for it."""
        result = late.flight.land()
        if late.is_overtaken or is_loaded:
            result = result.clone()  # what was loaded may still be put back
            result[: self._bucket.numel].mul_(0)  # NaN stays, as on ranks that have loaded nothing
        return result if late.used is None else torch.cat([result, late.used.to(result)])

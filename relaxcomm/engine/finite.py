"""Whether exchanged tensors are finite, at the price of one read of each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from relaxcomm.buckets import Bucket
from relaxcomm.errors import NonFiniteError

_SHOWN = 3


def is_finite(flat: Tensor) -> bool:
    """Whether every entry is finite.

    A sum is not finite if an entry is not, and reads memory once (isfinite is 20 times slower on
    CPU); a sum that overflows although all entries are finite is looked at again, exactly.
    """
    if not flat.is_floating_point() or not flat.numel():
        return True
    wide = torch.float32 if flat.dtype in (torch.float16, torch.bfloat16) else None
    return bool(torch.isfinite(flat.sum(dtype=wide))) or bool(torch.isfinite(flat).all())


def non_finite_error(what: str, found: Iterable[tuple[Bucket, Tensor]], step: int) -> NonFiniteError:
    """An error that names the tensors that hold NaN or infinity."""
    shown = _names(found) or "what another rank put in"
    return NonFiniteError(
        f"step {step}: the {what} of {shown} hold NaN or infinity after the exchange, so some worker made "
        "them; nothing of this exchange was kept. Lower the learning rate or clip gradients; if a "
        "GradScaler is used, pass it: attach(..., scaler=scaler)"
    )


def unsent_error(bucket: Bucket, flat: Tensor, rank: int, step: int) -> NonFiniteError:
    """An error about this rank's own parameters, which it has not sent."""
    return NonFiniteError(
        f"rank {rank}, step {step}: the parameters of {_names([(bucket, flat)])} hold NaN or infinity, so "
        "they were not sent and no other rank has them. Lower the learning rate or clip gradients; if a "
        "GradScaler is used, pass it: attach(..., scaler=scaler)"
    )


def _names(found: Iterable[tuple[Bucket, Tensor]]) -> str:
    """The first tensors that hold NaN or infinity, and how many more."""
    names = [
        name
        for bucket, flat in found
        for name, view in zip(bucket.names, bucket.views(flat), strict=True)
        if not is_finite(view)
    ]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


class DeferredCheck:
    """The same check on a GPU, without making the host wait: an error comes one step late."""

    def __init__(self) -> None:
        self._flag: Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        self._step = 0

    def look(self, tensors: list[Tensor], *, step: int, is_error: bool) -> Tensor:
        """Whether all entries are finite, as a tensor on their device; remembered if it is an error."""
        good = torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()
        if is_error:
            self._flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._flag.copy_(good, non_blocking=True)
            self._copied, self._step = torch.cuda.Event(), step  # type: ignore[no-untyped-call]  # torch's
            self._copied.record()
        return good

    def raise_if_bad(self) -> None:
        """Raise NonFiniteError if the last look found NaN or infinity."""
        if self._flag is None or self._copied is None:
            return
        self._copied.synchronize()
        good, self._flag = bool(self._flag), None
        if not good:
            raise NonFiniteError(
                f"step {self._step}: exchanged gradients hold NaN or infinity (seen one step late, so that "
                "the host need not wait for the GPU); no state of it was kept. Lower the learning rate or "
                "clip gradients; if a GradScaler is used, pass it: attach(..., scaler=scaler)"
            )

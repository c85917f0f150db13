"""What is said of exchanged tensors that are not finite, and the check that no GPU waits for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from relaxcomm.errors import CommunicationError, NonFiniteError
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import is_finite

GRADIENT = "the gradient of"  # before names, where gradients are spoken of
_SHOWN = 3


def spoilt(bucket: Bucket, flat: Tensor, kind: str = "") -> list[str]:
    """What of a bucket holds NaN or infinity, "buffer 1.running_mean"; for one read if nothing does.

    Args:
        bucket: the bucket.
        flat: its contents, `[numel]` or more.
        kind: what is said before each name; by default whether it is a parameter or a buffer.
    """
    flat = flat[: bucket.numel]
    if is_finite(flat):
        return []
    return [
        f"{kind or ('parameter' if isinstance(item.tensor, nn.Parameter) else 'buffer')} {item.name}"
        for item, view in zip(bucket.items, bucket.views(flat), strict=True)
        if not is_finite(view)
    ]


def non_finite_error(
    world: World,
    put_in: Sequence[str],
    came: Sequence[str],
    step: int,
    *,
    so: str = "nothing of this exchange was kept",
) -> NonFiniteError:
    """An error that says on which ranks NaN or infinity arose; all ranks make it at the same place.

    They ask each other only now, so that a step in which all is well has no message more.

    Args:
        world: the ranks.
        put_in: what of this rank's own was not finite when it was sent.
        came: what was not finite when it came.
        step: in which.
        so: what follows.
    """
    try:
        everyone = world.gather(_listed(put_in), "an error about NaN or infinity")
    except CommunicationError as error:
        where = f"{_listed(put_in or came)} (on which ranks they arose could not be asked: {error})"
        return _error(f"step {step}: NaN or infinity in {where}; {so}")
    where = "; ".join(f"{names} on rank {rank}" for rank, names in enumerate(everyone) if names)
    where = where or f"{_listed(came) or 'a result'} though no rank put any in, so it overflowed on the way"
    return _error(f"step {step}: NaN or infinity in {where}; {so}")


def local_error(names: Sequence[str], rank: int, step: int, so: str) -> NonFiniteError:
    """An error about this rank's own tensors, which it makes alone."""
    return _error(f"step {step}: NaN or infinity in {_listed(names)} on rank {rank}; {so}")


def _error(text: str) -> NonFiniteError:
    return NonFiniteError(
        f"{text}. Lower the learning rate or clip gradients; if a GradScaler is used, pass it: "
        "attach(..., scaler=scaler)"
    )


def _listed(names: Sequence[str]) -> str:
    """The first of many names."""
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

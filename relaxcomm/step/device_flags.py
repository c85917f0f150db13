"""Whether exchanges on a GPU were finite: decided on the device, and read when it has got there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relaxcomm.replica.replica import Replica
from relaxcomm.step.finite import non_finite_error
from relaxcomm.step.world import World
from relaxcomm.tensors.finiteness import finite_flags

_LATE_STEPS = 2
_SO = f"its result was left out, which is seen up to {_LATE_STEPS} steps late, so that the host never waits"


@dataclass(frozen=True)
class PutIn:
    """What this rank has put into an exchange.

    Args:
        names: of tensors, as an error has them.
        good: whether each was finite, `[len(names)]`, on the device.
    """

    names: Sequence[str]
    good: Tensor

    @classmethod
    def of(cls, names: Sequence[str], views: Sequence[Tensor]) -> PutIn:
        """Look at tensors, in one pass and without waiting."""
        return cls(names, finite_flags(views))

    def bad(self) -> list[str]:
        """The names of those that were not finite; waits for the device."""
        return [name for name, good in zip(self.names, self.good.tolist(), strict=True) if not good]


@dataclass(frozen=True)
class _Flag:
    step: int
    good: Tensor  # in pinned memory
    copied: Any  # an event, after which it is there
    put_in: Sequence[PutIn]


class DeviceFlags:
    """Flags of exchanges on a GPU, on their way to the host.

    All ranks have the same flags and read them in the same step, so that an error is one on all of them.
    """

    def __init__(self, world: World, replica: Replica) -> None:
        self._world, self._replica = world, replica
        self._flags: deque[_Flag] = deque()

    def add(self, good: Tensor, step: int, put_in: Sequence[PutIn] = ()) -> None:
        """Send a flag on its way: whether all that was exchanged is finite, a scalar on the device.

        Args:
            good: the flag, equal on all ranks.
            step: in which.
            put_in: by this rank, to name it in an error.
        """
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(good, non_blocking=True)
        copied = torch.cuda.current_stream(good.device).record_event()
        self._flags.append(_Flag(step, flag, copied, put_in))

    def raise_if_bad(self, step: int | None = None) -> None:
        """Raise NonFiniteError, on all ranks alike, for what was not finite.

        Args:
            step: now; flags of the two steps before are still on their way. None waits for all.
        """
        while self._flags and (step is None or self._flags[0].step <= step - _LATE_STEPS):
            flag = self._flags.popleft()
            if not flag.copied.query():
                flag.copied.synchronize()
            if not flag.good:
                self._flags.clear()
                names = [name for one in flag.put_in for name in one.bad()]
                raise non_finite_error(self._world, names, (), flag.step, so=_SO, replica=self._replica)

    def forget(self) -> None:
        """Raise no error for what was exchanged until now: the run goes on from before it."""
        self._flags.clear()

"""Operations of torch.distributed that are on their way."""

from __future__ import annotations

import time
from typing import Any, cast

from torch import Tensor

from relaxcomm.network.operations import Label, Received
from relaxcomm.network.transport import Pending
from relaxcomm.network.waiting import Waiting


class TorchPending(Pending):
    """An operation on its way.

    Args:
        waiting: for other ranks.
        works: of torch's, that end with it.
        result: where the result will be.
        label: of the operation.
        index: its number among what was issued; None for a request to a service.
        on_cpu: whether the host waits for it; else the device's current stream does.
    """

    def __init__(
        self,
        waiting: Waiting,
        works: list[Any],
        result: Received,
        label: Label,
        index: int | None,
        *,
        on_cpu: bool,
    ) -> None:
        self._waiting, self._works, self._result = waiting, works, result
        self._label, self._index, self._on_cpu = label, index, on_cpu
        self._issued = time.monotonic()

    def give_up(self) -> None:
        """Never to be waited for again."""
        self._works.clear()

    def arrived(self) -> bool:
        at = (self._label, self._index, self._issued)
        return all(self._waiting.look(work, *at) for work in self._works)

    def wait(self) -> Received:
        for work in self._works:
            if self._on_cpu:
                self._waiting.wait_for(work, self._label, self._index)
            else:
                work.wait()  # orders the current stream behind the operation, the host goes on
        return cast("Tensor", self._result)

"""Operations of torch.distributed that are on their way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.network.device_times import Crossing, DeviceTimes
from relaxcomm.network.monitor import Monitor, Outstanding
from relaxcomm.network.operations import Label, Received
from relaxcomm.network.streams import Streams
from relaxcomm.network.transport import Pending
from relaxcomm.network.waiting import Waiting


class TorchPending(Pending):
    """An operation on its way, for which the host waits.

    Args:
        waiting: for other ranks.
        works: of torch's, that end with it.
        result: where the result will be.
        label: of the operation.
        index: its number among what was issued; None for a request to a service.
    """

    def __init__(
        self, waiting: Waiting, works: list[Any], result: Received, label: Label, index: int | None
    ) -> None:
        self._waiting, self._works, self._result = waiting, works, result
        self._label, self._index = label, index
        self._issued = time.monotonic()

    def give_up(self) -> None:
        """Never to be waited for again."""
        self._works.clear()

    def arrived(self) -> bool:
        at = (self._label, self._index, self._issued)
        return all(self._waiting.look(work, *at) for work in self._works)

    def wait(self) -> Received:
        for work in self._works:
            self._waiting.wait_for(work, self._label, self._index)
        return self._result


class StreamPending(Pending):
    """An operation on its way between GPUs: the current stream waits for it, and the host goes on.

    Args:
        monitor: watches it.
        streams: of the device.
        times: of what has landed for training.
        broke: the error of this rank where torch raises one.
        works: of torch's, that end with it.
        result: where the result will be.
        label: of the operation.
        index: its number among what was issued.
    """

    def __init__(
        self,
        monitor: Monitor,
        streams: Streams,
        times: DeviceTimes,
        broke: Callable[[object, RuntimeError], Exception],
        works: list[Any],
        result: Received,
        label: Label,
        index: int,
    ) -> None:
        self._monitor, self._streams, self._times, self._broke = monitor, streams, times, broke
        self._works, self._result, self._label = works, result, label
        self._watched = Outstanding(label, index, lambda: all(work.is_completed() for work in works))
        monitor.watch(self._watched)
        self._issued = streams.mark()

    def give_up(self) -> None:
        """Never to be waited for again; the monitor still sees to it that it ends."""
        self._works = []

    def arrived(self) -> bool:
        self._monitor.check()
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Received:
        self._monitor.check()
        waits = self._streams.mark()
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            self._monitor.check()
            raise self._broke(self._label, error) from error
        # torch's works hold tensors, whose memory others may use from now on; a mark in the stream does not.
        landed = self._streams.mark()
        self._watched.has_ended = landed.query
        if self._label.rule != EVALUATION:
            self._times.add(Crossing(self._issued, waits, landed))
        return self._result

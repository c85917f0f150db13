"""Operations over torch.distributed: counted, waited for, and each failure told with its place."""

from __future__ import annotations

import itertools
import math
import time
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network.liveness import Peers, without_frames
from relaxcomm.network.operations import (
    Agree,
    Label,
    Operation,
    Received,
    Request,
)
from relaxcomm.network.process_groups import Groups
from relaxcomm.network.services import Services
from relaxcomm.network.traffic import traffic
from relaxcomm.network.transport import ByteCounters, Membership, Pending, Place, Service, Transport

_SLICE_SECONDS = 1.0
_GRACE_SECONDS = 0.5
_numbers = itertools.count()


class TorchTransport(Transport):
    """NCCL or Gloo.

    Args:
        process_group: the ranks that take part; None for all. Nothing is sent on it.
        device: where the model is.
        backend: "auto" takes NCCL for CUDA and Gloo for the CPU.
        timeout_seconds: the longest wait for another rank.
        debug: compare labels, kinds, shapes and dtypes before every operation.

    Raises: ConfigError for NCCL without CUDA tensors.
    """

    def __init__(
        self, process_group: Any, *, device: torch.device, backend: str, timeout_seconds: float, debug: bool
    ) -> None:
        chosen = {"auto": "nccl" if device.type == "cuda" else "gloo"}.get(backend, backend)
        if chosen == "nccl" and device.type != "cuda":
            raise ConfigError(f"backend: nccl needs a model on a GPU, got {device}; use gloo or auto")
        ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
        self.backend = chosen
        self._timeout, self._debug = timeout_seconds, debug
        limit = timedelta(seconds=timeout_seconds + 2)  # ours fires first and says more
        self._groups = Groups(ranks, backend=chosen, limit=limit)
        name = f"relaxcomm/{'-'.join(map(str, ranks))}/{next(_numbers)}"
        self._peers = Peers(name, self.membership)
        self._asked = -math.inf  # when, in `look`, what became of the peers
        self._broken = False
        self._services: Services | None = None
        self.counters = ByteCounters()

    @property
    def membership(self) -> Membership:
        return self._groups.membership

    def now(self) -> float:
        return time.perf_counter()

    def traffic(self, operation: Operation) -> tuple[int, int]:
        return traffic(operation, self.membership.rank, self.membership.world_size)

    def issue(self, operation: Operation, label: Label) -> Pending:
        if self._debug and not isinstance(operation, Request):
            self._compare(operation, label)
        if not isinstance(operation, Request):  # services count for themselves
            self.counters.add(label.rule, *self.traffic(operation))
        try:
            works, result = self._start(operation, label)
        except RuntimeError as error:
            raise self._broke(label, error) from error
        on_cpu = self._groups.on_cpu or isinstance(operation, Agree | Request)
        return _TorchPending(self, works, result, label, on_cpu=on_cpu)

    def serve(self, place: Place, service: Service, request: Tensor, reply: Tensor) -> None:
        if self._services is None:
            options = {"use_local_synchronization": self._groups.partial}
            self._services = Services(self._groups.ranks, self.membership.rank, self.counters, options)
        self._services.serve(place, service, request, reply)

    def leave(self) -> None:
        if self._services is None:
            return
        self.announce("has finished and serves")

        def check() -> None:
            if gone := self._peers.gone("failed"):
                raise self._failure("the end of training", gone)

        try:
            self._services.leave(self._timeout, check)
        except TimeoutError as error:
            raise self._failure("the end of training", error) from error
        except RuntimeError as error:
            raise self._broke("the end of training", error) from error

    def gather_objects(self, value: object) -> list[object]:
        try:
            return self._groups.gather_objects(value)
        except RuntimeError as error:
            raise self._broke("gather objects", error) from error

    def announce(self, status: str) -> None:
        if not self._peers.announce(status):
            self._broken = True

    def close(self) -> None:
        if self._services is not None:
            self._services.abandon()  # nothing is left of them where all have left
        if not self._broken:
            self._groups.destroy()
        self._broken = True

    def wait(self, work: Any, label: Label) -> None:
        """Wait in slices; between them, look whether another rank has failed or gone."""
        deadline, completed, noticed = time.monotonic() + self._timeout, False, ""
        while True:
            left = deadline - time.monotonic()
            try:
                work.wait(timedelta(seconds=max(0.001, min(_SLICE_SECONDS, left))))
                return
            except RuntimeError as error:
                if completed:  # the operation itself failed; a slice that ran out is not completed
                    raise self._broke(label, error) from error
                completed = work.is_completed()
            gone = self._peers.gone()
            if gone and gone == noticed:  # seen twice, so it is not on its way out behind this operation
                raise self._failure(label, gone)
            noticed = gone
            if time.monotonic() >= deadline and not completed:
                raise self._late(label)

    def look(self, work: Any, label: Label, since: float) -> bool:
        """Whether a work that was issued at `since` has ended, well or not."""
        if work.is_completed():
            return True
        now = time.monotonic()
        if now - since > self._timeout:
            raise self._late(label)
        if now - self._asked >= _SLICE_SECONDS:  # whoever polls does so for each bucket in each step
            self._asked = now
            if gone := self._peers.gone():
                raise self._failure(label, gone)
        return False

    def _start(self, operation: Operation, label: Label) -> tuple[list[Any], Received]:
        if not isinstance(operation, Request):
            return self._groups.start(operation)
        assert self._services is not None, "serve comes before the first request"
        return [self._services.ask((label.rule, label.unit), operation)], operation.reply

    def _compare(self, operation: Operation, label: Label) -> None:
        shape = list(operation.tensor.shape) if hasattr(operation, "tensor") else ""
        dtype = operation.tensor.dtype if hasattr(operation, "tensor") else ""
        mine = f"{type(operation).__name__} {shape} {dtype} at {label}"
        everyone = self.gather_objects(mine)
        if len(set(everyone)) > 1:
            places = "; ".join(f"rank {rank} issues {what}" for rank, what in enumerate(everyone))
            raise CommunicationError(f"ranks are not at the same place: {places}")

    def _late(self, label: Label) -> CommunicationError:
        self.announce(f"waits at {label}")
        time.sleep(_GRACE_SECONDS)
        return self._failure(
            label, f"not complete after {self._timeout:g} s (timeout_seconds): {self._peers.heard()}"
        )

    def _broke(self, label: Label | str, error: RuntimeError) -> CommunicationError:
        return self._failure(label, f"{without_frames(error)}; {self._peers.heard()}")

    def _failure(self, label: Label | str, cause: object) -> CommunicationError:
        self._broken = True
        return CommunicationError(f"rank {self.membership.rank} at {label}: {without_frames(cause)}")


class _TorchPending(Pending):
    def __init__(
        self, transport: TorchTransport, works: list[Any], result: Received, label: Label, *, on_cpu: bool
    ) -> None:
        self._transport, self._works, self._result = transport, works, result
        self._label, self._on_cpu = label, on_cpu
        self._issued = time.monotonic()

    def arrived(self) -> bool:
        return all(self._transport.look(work, self._label, self._issued) for work in self._works)

    def wait(self) -> Received:
        for work in self._works:
            if self._on_cpu:
                self._transport.wait(work, self._label)
            else:
                work.wait()  # orders the current stream behind the operation, the host goes on
        return cast("Tensor", self._result)

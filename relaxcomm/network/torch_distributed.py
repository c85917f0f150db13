"""Operations over torch.distributed: counted, waited for, and each failure told with its place."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, cast
from weakref import WeakSet

import torch
from torch import Tensor

from relaxcomm.errors import CommunicationError, ConfigError, ForgeryError, RankLostError
from relaxcomm.network import flight_recorder
from relaxcomm.network.liveness import Missing, Peers, without_frames
from relaxcomm.network.meeting_place import MeetingPlace
from relaxcomm.network.meetings import Apart, Meetings
from relaxcomm.network.operations import (
    Agree,
    Label,
    Operation,
    Received,
    Request,
)
from relaxcomm.network.process_groups import Burial, Groups
from relaxcomm.network.reductions import signature
from relaxcomm.network.seal import agree
from relaxcomm.network.secret import Secret
from relaxcomm.network.service_messages import RefusedError
from relaxcomm.network.services import Services
from relaxcomm.network.status import State, Status
from relaxcomm.network.traffic import traffic
from relaxcomm.network.trail import Trail
from relaxcomm.network.transport import ByteCounters, Membership, Pending, Place, Service, Transport

_SLICE_SECONDS = 1.0
_SHORT_SLICE_SECONDS = 0.2
_ELASTIC_SLICE_SECONDS = 0.1
_GRACE_SECONDS = 1.0  # in which those that see a peer end say so
_COMPARED_OPERATIONS = 1024  # after so many ranks compare what they have issued, beside training


T = TypeVar("T")


class TorchTransport(Transport):
    """NCCL or Gloo.

    Args:
        place: where the ranks that take part meet.
        device: where the model is.
        backend: "auto" takes NCCL for CUDA and Gloo for the CPU.
        timeout_seconds: the longest wait for another rank.
        debug: compare labels, kinds, shapes and dtypes before every operation.
        elastic: whether others go on without ranks that are lost; then whoever waits looks often.
        grace_seconds: the longest wait for a rank that has met the others before; None for `timeout_seconds`.

    Raises: ConfigError for NCCL without CUDA tensors.
    """

    def __init__(
        self,
        place: MeetingPlace,
        *,
        device: torch.device,
        backend: str,
        timeout_seconds: float,
        debug: bool,
        elastic: bool = False,
        grace_seconds: float | None = None,
    ) -> None:
        chosen = {"auto": "nccl" if device.type == "cuda" else "gloo"}.get(backend, backend)
        if chosen == "nccl" and device.type != "cuda":
            raise ConfigError(f"backend: nccl needs a model on a GPU, got {device}; use gloo or auto")
        self.place = place
        """Where the ranks meet."""
        self.backend = chosen
        self._device = device
        self._timeout, self._debug = grace_seconds or timeout_seconds, debug
        self._limit = "timeout_seconds" if grace_seconds is None else "membership.grace_seconds"
        self._is_elastic = elastic
        self._look_seconds = _ELASTIC_SLICE_SECONDS if elastic else _SLICE_SECONDS
        self._broken = False
        self._under_way: WeakSet[_TorchPending] = WeakSet()
        self._peers = Peers(place, is_watched=elastic)
        self._trail = Trail()
        groups = None
        try:
            self._seal = agree(place.store, place.name, place.membership, place.secret, place.making)
            groups = Groups(place, backend=chosen)
            self._peers.meet()
        except RuntimeError as error:
            if groups is not None:
                Burial(groups).start()
            raise self._broke("attach()", error) from error
        self._groups = groups
        self._meetings = Meetings(self._groups, self._trail, self._wait_at_event)
        self._asked = -math.inf  # when, in `look`, what became of the peers
        self._services: Services | None = None
        self.counters = ByteCounters()

    @classmethod
    def of(
        cls,
        process_group: Any,
        *,
        timeout_seconds: float,
        secret: Secret | None = None,
        elastic: bool = False,
        **settings: Any,
    ) -> TorchTransport:
        """Between the ranks of a group of torch's, on which nothing is sent; None for the default one."""
        place = MeetingPlace.of(process_group, timeout_seconds, secret, elastic=elastic)
        return cls(place, timeout_seconds=timeout_seconds, elastic=elastic, **settings)

    def at(self, place: MeetingPlace) -> TorchTransport:
        """One like this between other ranks, which goes on counting.

        Raises: CommunicationError if one of them does not come.
        """
        made = TorchTransport(
            place,
            device=self._device,
            backend=self.backend,
            timeout_seconds=self._timeout,
            debug=self._debug,
            elastic=True,
        )
        made.counters, made._limit = self.counters, self._limit
        return made

    def give_up(self) -> None:
        """Let go of operations that will never end, when ranks are lost.

        Connections close with the last reference to what used them, and only that ends the operations of
        those at the other end.
        """
        self._broken = True
        self._let_go()
        if self._services is not None:
            self._services.give_up()
        Burial(self._groups).start()
        self._peers.close()

    @property
    def membership(self) -> Membership:
        return self.place.membership

    def now(self) -> float:
        return time.perf_counter()

    def traffic(self, operation: Operation) -> tuple[int, int]:
        return traffic(operation, self.membership.rank, self.membership.world_size)

    def issue(self, operation: Operation, label: Label) -> Pending:
        index = None
        if not isinstance(operation, Request):  # services count for themselves
            if self._debug:
                self.meet(signature(operation, str(label)))
            index = self._trail.add(operation, label)
            if self._trail.count % _COMPARED_OPERATIONS == 0:
                self._at_event(str(label), self._meetings.compare)
            self.counters.add(label.rule, *self.traffic(operation))
        elif self._is_elastic:  # one that asks itself alone would never learn that others have gone on
            self._look_for_missing(label, index)
        try:
            works, result = self._start(operation, label)
        except RuntimeError as error:
            raise self._broke(label, error) from error
        on_cpu = self._groups.on_cpu or isinstance(operation, Agree | Request)
        pending = _TorchPending(self, works, result, label, index, on_cpu=on_cpu)
        self._under_way.add(pending)
        return pending

    def serve(self, place: Place, service: Service, request: Tensor, reply: Tensor) -> None:
        if self._services is None:
            try:
                self._services = Services(self.place, self.counters, self._seal)
            except RuntimeError as error:
                raise self._broke("the beginning of services", error) from error
        self._services.serve(place, service, request, reply)

    def leave(self) -> None:
        if self._services is None:
            return
        mine = Status("serves", "has finished and serves", self._meetings.passed, self._trail.count)
        self._peers.announce(mine)

        def check() -> None:
            if missing := self._peers.missing(mine):
                raise self._failure("the end of training", missing)

        try:
            self._services.leave(self._timeout, check)
        except TimeoutError as error:
            raise self._failure("the end of training", Missing(str(error), lost=True)) from error
        except RuntimeError as error:
            raise self._broke("the end of training", error) from error

    def meet(self, event: str, step: int | None = None) -> None:
        self._meet(event, step, b"")

    def gather_objects(self, value: object, event: str, step: int | None = None) -> list[object]:
        number, mine = self._meetings.passed, pickle.dumps(value)
        tags = [f"{number} {rank} {event} {step}".encode() for rank in range(self.membership.world_size)]
        tag = self._seal.tag("objects", tags[self.membership.rank], mine)
        came = self._meet(event, step, tag + mine)
        for rank, one in enumerate(came):  # before it is read: what is pickled can run code
            if not self._seal.check(one[: len(tag)], "objects", tags[rank], one[len(tag) :]):
                raise ForgeryError(
                    f"what came from rank {rank} at {event} was not made with membership.secret"
                )
        return [pickle.loads(one[len(tag) :]) for one in came]

    def announce(self, status: str) -> None:
        state: State = "failed" if status.startswith("failed") else "closed"
        self._broken = self._broken or state == "failed"
        self._peers.announce(Status(state, status, self._meetings.passed, self._trail.count))

    def close(self) -> None:
        if self._services is not None:
            self._services.abandon()  # nothing is left of them where all have left
        self._let_go()
        if self._broken:
            Burial(self._groups).start()
        else:
            self._groups.destroy()
            if self._services is not None:
                self._services.destroy()
        self._peers.close()
        self._broken = True

    def wait(self, work: Any, mine: Status, at: object, slice_seconds: float = _SLICE_SECONDS) -> None:
        """Wait in slices; between them, say where this rank waits, and look whether the others will come."""
        deadline, noticed, announced = time.monotonic() + self._timeout, Missing(), False
        while True:
            left = deadline - time.monotonic()
            try:
                work.wait(timedelta(seconds=max(0.001, min(slice_seconds, left))))
                return
            except RuntimeError as error:
                if self._has_failed(work, error):
                    raise self._broke(at, error) from error
            if not announced:
                self._peers.announce(mine)
            missing, announced = self._peers.missing(mine), True
            if missing and missing == noticed:  # seen twice: what others sent before they ended has come
                raise self._failure(at, missing)
            noticed, slice_seconds = missing, _SHORT_SLICE_SECONDS if missing else _SLICE_SECONDS
            if left <= 0:
                raise self._late(at)

    def wait_for(self, work: Any, label: Label, index: int | None) -> None:
        """Wait for the operation that was issued as number `index`, or for a service where that is None."""
        deadline = time.monotonic() + min(_SLICE_SECONDS, self._timeout)
        while (left := deadline - time.monotonic()) > 0:
            try:
                work.wait(timedelta(seconds=max(0.001, min(self._look_seconds, left))))  # 0 is for ever
                return  # without a status, which is made for what is late
            except RuntimeError:
                if work.is_completed() or (self._look_seconds < left and self._peers.is_over()):
                    break
        self.wait(work, self._waiting(label, index), label)

    def look(self, work: Any, label: Label, index: int | None, since: float) -> bool:
        """Whether a work that was issued at `since` has ended, well or not."""
        if work.is_completed():
            return True
        if time.monotonic() - since > self._timeout:
            raise self._late(label)
        self._look_for_missing(label, index)
        return False

    def _let_go(self) -> None:
        """Nobody waits any more for what is under way, which would keep its group, and that its threads."""
        for pending in self._under_way:
            pending.give_up()
        self._meetings.let_go()

    def _look_for_missing(self, label: Label, index: int | None) -> None:
        """Look what became of the others, now and then: whoever polls does so for each bucket."""
        now = time.monotonic()
        if now - self._asked >= _SLICE_SECONDS:
            self._asked = now
            if missing := self._peers.missing(self._waiting(label, index), _SHORT_SLICE_SECONDS):
                raise self._failure(label, missing)

    def _waiting(self, label: Label, index: int | None) -> Status:
        state: State = "asks" if index is None else "waits"
        return Status(state, f"waits at {label}", self._meetings.passed, index or 0)

    @staticmethod
    def _has_failed(work: Any, error: RuntimeError) -> bool:
        """Whether a wait raised because the operation failed: a slice that ran out is not completed."""
        if not work.is_completed():
            return False
        with suppress(RuntimeError):
            work.wait(timedelta(0))
            return False
        return True

    def _meet(self, event: str, step: int | None, payload: bytes) -> list[bytes]:
        return self._at_event(event, lambda: self._meetings.meet(event, step, payload))

    def _at_event(self, place: str, meet: Callable[[], T]) -> T:
        """What `meet` brings; its errors are this rank's."""
        try:
            return meet()
        except Apart as error:
            raise self._failure(place, Missing(str(error))) from None
        except CommunicationError:
            raise
        except RuntimeError as error:
            raise self._broke(place, error) from error

    def _wait_at_event(self, work: Any, state: State, place: str) -> None:
        mine = Status(state, f"is at {place}", self._meetings.passed, self._trail.count)
        self.wait(work, mine, place, _SHORT_SLICE_SECONDS)

    def _start(self, operation: Operation, label: Label) -> tuple[list[Any], Received]:
        if not isinstance(operation, Request):
            return self._groups.start(operation)
        assert self._services is not None, "serve comes before the first request"
        asked = self._services.ask((label.rule, label.unit), operation, label.step)
        return [asked], operation.reply

    def _late(self, at: object) -> CommunicationError:
        said = f"not complete after {self._timeout:g} s ({self._limit}): {self._peers.heard()}"
        if recorded := flight_recorder.dump(self.place.ranks[self.membership.rank]):
            said += f"; torch's Flight Recorder is in {recorded}"
        return self._failure(at, Missing(said, lost=True))

    def _broke(self, at: object, error: RuntimeError) -> CommunicationError:
        if isinstance(error, RefusedError):
            return self._failure(at, Missing(f"an answer was refused and not used: {error}"))
        cause = self._peers.cause(_GRACE_SECONDS)
        return self._failure(at, replace(cause, words=f"{cause.words} ({without_frames(error)})"))

    def _failure(self, at: object, cause: Missing) -> CommunicationError:
        kind = RankLostError if cause.lost else CommunicationError
        found = kind(f"rank {self.membership.rank} at {at}: {without_frames(cause.words)}")
        self.announce(f"failed: {kind.__name__}: {found}")
        return found


class _TorchPending(Pending):
    def __init__(
        self,
        transport: TorchTransport,
        works: list[Any],
        result: Received,
        label: Label,
        index: int | None,
        *,
        on_cpu: bool,
    ) -> None:
        self._transport, self._works, self._result = transport, works, result
        self._label, self._index, self._on_cpu = label, index, on_cpu
        self._issued = time.monotonic()

    def give_up(self) -> None:
        """Never to be waited for again."""
        self._works.clear()

    def arrived(self) -> bool:
        at = (self._label, self._index, self._issued)
        return all(self._transport.look(work, *at) for work in self._works)

    def wait(self) -> Received:
        for work in self._works:
            if self._on_cpu:
                self._transport.wait_for(work, self._label, self._index)
            else:
                work.wait()  # orders the current stream behind the operation, the host goes on
        return cast("Tensor", self._result)

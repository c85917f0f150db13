"""Operations over torch.distributed: counted, waited for, and each failure told with its place."""

from __future__ import annotations

import pickle
import time
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from relaxcomm.errors import ConfigError, ForgeryError
from relaxcomm.network.liveness import Missing
from relaxcomm.network.meeting_place import MeetingPlace
from relaxcomm.network.meetings import Meetings
from relaxcomm.network.operations import (
    Agree,
    Label,
    Operation,
    Received,
    Request,
)
from relaxcomm.network.pending_works import TorchPending
from relaxcomm.network.process_groups import Burial, Groups
from relaxcomm.network.reductions import signature
from relaxcomm.network.seal import agree
from relaxcomm.network.secret import Secret
from relaxcomm.network.services import Services
from relaxcomm.network.traffic import traffic
from relaxcomm.network.trail import Trail
from relaxcomm.network.transport import ByteCounters, Membership, Pending, Place, Service, Transport
from relaxcomm.network.waiting import Waiting

_COMPARED_OPERATIONS = 1024  # after so many ranks compare what they have issued, beside training


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
        self._device, self._debug, self._is_elastic = device, debug, elastic
        self._under_way: WeakSet[TorchPending] = WeakSet()
        self._trail = Trail()
        self._waiting = Waiting(
            place,
            self._trail,
            seconds=grace_seconds or timeout_seconds,
            limit="timeout_seconds" if grace_seconds is None else "membership.grace_seconds",
            elastic=elastic,
        )
        groups = None
        try:
            self._seal = agree(place.store, place.name, place.membership, place.secret, place.making)
            groups = Groups(place, backend=chosen)
            self._waiting.peers.meet()
        except RuntimeError as error:
            if groups is not None:
                Burial(groups).start()
            raise self._waiting.broke("attach()", error) from error
        self._groups = groups
        self._meetings = Meetings(groups, self._trail, self._waiting.wait_at_event)
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
            timeout_seconds=self._waiting.seconds,
            debug=self._debug,
            elastic=True,
        )
        made.counters, made._waiting.limit = self.counters, self._waiting.limit
        return made

    def give_up(self) -> None:
        """Let go of operations that will never end, when ranks are lost.

        Connections close with the last reference to what used them, and only that ends the operations of
        those at the other end.
        """
        self._waiting.has_failed = True
        self._let_go()
        if self._services is not None:
            self._services.give_up()
        Burial(self._groups).start()
        self._waiting.peers.close()

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
                self._waiting.at_event(str(label), self._meetings.compare)
            self.counters.add(label.rule, *self.traffic(operation))
        elif self._is_elastic:  # one that asks itself alone would never learn that others have gone on
            self._waiting.look_for_missing(label, index)
        try:
            works, result = self._start(operation, label)
        except RuntimeError as error:
            raise self._waiting.broke(label, error) from error
        on_cpu = self._groups.on_cpu or isinstance(operation, Agree | Request)
        pending = TorchPending(self._waiting, works, result, label, index, on_cpu=on_cpu)
        self._under_way.add(pending)
        return pending

    def serve(self, place: Place, service: Service, request: Tensor, reply: Tensor) -> None:
        if self._services is None:
            try:
                self._services = Services(self.place, self.counters, self._seal)
            except RuntimeError as error:
                raise self._waiting.broke("the beginning of services", error) from error
        self._services.serve(place, service, request, reply)

    def leave(self) -> None:
        if self._services is None:
            return
        waiting = self._waiting
        mine = waiting.status("serves", "has finished and serves")
        waiting.peers.announce(mine)

        def check() -> None:
            if missing := waiting.peers.missing(mine):
                raise self._waiting.failure("the end of training", missing)

        try:
            self._services.leave(waiting.seconds, check)
        except TimeoutError as error:
            raise self._waiting.failure("the end of training", Missing(str(error), lost=True)) from error
        except RuntimeError as error:
            raise self._waiting.broke("the end of training", error) from error

    def meet(self, event: str, step: int | None = None) -> None:
        self._meet(event, step, b"")

    def gather_objects(self, value: object, event: str, step: int | None = None) -> list[object]:
        number, mine = self._trail.events, pickle.dumps(value)
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
        self._waiting.announce(status)

    def close(self) -> None:
        if self._services is not None:
            self._services.abandon()  # nothing is left of them where all have left
        self._let_go()
        if self._waiting.has_failed:
            Burial(self._groups).start()
        else:
            self._groups.destroy()
            if self._services is not None:
                self._services.destroy()
        self._waiting.peers.close()
        self._waiting.has_failed = True

    def _let_go(self) -> None:
        """Nobody waits any more for what is under way, which would keep its group, and that its threads."""
        for pending in self._under_way:
            pending.give_up()
        self._meetings.let_go()

    def _meet(self, event: str, step: int | None, payload: bytes) -> list[bytes]:
        return self._waiting.at_event(event, lambda: self._meetings.meet(event, step, payload))

    def _start(self, operation: Operation, label: Label) -> tuple[list[Any], Received]:
        if not isinstance(operation, Request):
            return self._groups.start(operation)
        assert self._services is not None, "serve comes before the first request"
        asked = self._services.ask((label.rule, label.unit), operation, label.step)
        return [asked], operation.reply

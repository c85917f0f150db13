"""Operations over torch.distributed: counted, waited for, and each failure told with its place."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from relaxcomm.errors import CommunicationError, RankLostError
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.device_times import DeviceTimes
from relaxcomm.network.liveness import Missing
from relaxcomm.network.meetings import Meetings
from relaxcomm.network.monitor import Monitor
from relaxcomm.network.operations import Label, Operation, Request
from relaxcomm.network.pending_works import StreamPending, TorchPending
from relaxcomm.network.process_groups import Groups, chosen_backend
from relaxcomm.network.reductions import signature
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.seal import agree
from relaxcomm.network.secret import Secret
from relaxcomm.network.services import Services
from relaxcomm.network.streams import Streams
from relaxcomm.network.trail import Trail
from relaxcomm.network.transport import Membership, Pending, Service, ServiceKey, Transport
from relaxcomm.network.waiting import Waiting

_COMPARED_OPERATIONS = 1024  # after so many ranks compare what they have issued, beside training


class TorchTransport(Transport):
    """NCCL or Gloo.

    Args:
        rendezvous: where the ranks that take part meet.
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
        rendezvous: Rendezvous,
        *,
        device: torch.device,
        backend: str,
        timeout_seconds: float,
        debug: bool,
        elastic: bool = False,
        grace_seconds: float | None = None,
    ) -> None:
        self.rendezvous = rendezvous
        """Where the ranks meet."""
        self.backend = chosen_backend(backend, device)
        self._device, self._debug, self._is_elastic = device, debug, elastic
        self._under_way: WeakSet[TorchPending | StreamPending] = WeakSet()
        self._trail = Trail()
        self._waiting = Waiting(
            rendezvous,
            self._trail,
            seconds=grace_seconds or timeout_seconds,
            limit="timeout_seconds" if grace_seconds is None else "membership.grace_seconds",
            elastic=elastic,
            is_watched=elastic or self.backend == "nccl",
        )
        try:
            self._seal = agree(rendezvous)
            self._groups = Groups(rendezvous, backend=self.backend, device=device, elastic=elastic)
        except RankLostError as error:
            raise self._waiting.failure("attach()", Missing(str(error), lost=True)) from error
        except RuntimeError as error:
            raise self._waiting.broke("attach()", error) from error
        self._streams = Streams(device)
        self._times = DeviceTimes()
        self._monitor = Monitor(self._waiting, self._groups.communicators)
        self._meetings = Meetings(self._groups, self._trail, self._waiting.wait_at_event)
        self._services = Services(rendezvous, self._seal, self._streams, self._monitor.check)
        self.counters = ByteCounters()
        self._introduce()

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
        rendezvous = Rendezvous.of(process_group, timeout_seconds, secret)
        return cls(rendezvous, timeout_seconds=timeout_seconds, elastic=elastic, **settings)

    def at(self, rendezvous: Rendezvous) -> TorchTransport:
        """One like this between other ranks, which goes on counting.

        Raises: CommunicationError if one of them does not come.
        """
        made = TorchTransport(
            rendezvous,
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
        self._monitor.end()
        self._let_go()
        self._services.give_up()
        if self._groups.communicators is not None:
            self._groups.communicators.abort()  # what is under way may write until then
        self._groups.bury()
        self._waiting.peers.close()

    @property
    def membership(self) -> Membership:
        return self.rendezvous.membership

    def now(self) -> float:
        return time.perf_counter()

    def device_seconds(self) -> tuple[float, float]:
        return self._times.take()

    def issue(self, operation: Operation, label: Label) -> Pending:
        self._monitor.check()
        if isinstance(operation, Request):
            return self._ask(operation, label)
        if self._debug:
            self.meet(signature(operation, str(label)))
        index, waiting = self._trail.add(operation, label), self._waiting
        if self._trail.count % _COMPARED_OPERATIONS == 0:
            waiting.at_event(str(label), self._meetings.compare)
        self.counters.add(label.rule, *self.traffic(operation))
        try:
            works, result = self._groups.start(operation, lambda work: waiting.wait_for(work, label, index))
        except CommunicationError:  # while others were waited for who make a group for it
            raise
        except RuntimeError as error:
            self._monitor.check()
            raise waiting.broke(label, error) from error
        if self._groups.waits_on_host(operation):
            return self._sent(TorchPending(waiting, works, result, label, index))
        return self._sent(
            StreamPending(
                self._monitor, self._streams, self._times, waiting.broke, works, result, label, index
            )
        )

    def serve(self, key: ServiceKey, service: Service, request: Tensor, reply: Tensor) -> None:
        self._waiting.at_event(
            "the beginning of services",
            lambda: self._services.serve(key, service, request, reply, self.counters),
        )

    def leave(self) -> None:
        if not self._services.is_serving:
            return
        self._monitor.check()
        waiting, end = self._waiting, "the end of training"
        check = waiting.end_of_asking(end)
        waiting.at_event(end, lambda: self._services.leave(waiting.seconds, check))
        self._trail.events += 1  # whoever has left says no more to those whose goodbyes are on their way

    def meet(self, event: str, step: int | None = None) -> None:
        self._meet(event, step, b"")

    def gather_objects(self, value: object, event: str, step: int | None = None) -> list[object]:
        at = f"{self._trail.events} {event} {step}"
        mine = self._seal.pack(value, at, self.membership.rank)
        return self._seal.unpack(self._meet(event, step, mine), at, event)

    def announce(self, status: str) -> None:
        if self.shards is not None:
            self.shards.announce(status)
        self._waiting.announce(status)
        if self._waiting.has_failed:  # with an error of its own, which is told
            self._monitor.settle()

    def close(self) -> None:
        if self.shards is not None:
            self.shards.close()
        self._services.give_up()  # nothing is left of them where all have left
        self._let_go()
        if self._waiting.has_failed:
            self._groups.bury()
        else:
            self._groups.destroy()
        self._monitor.end()
        self._waiting.peers.close()
        self._waiting.has_failed = True
        self._monitor.check_told()

    def _introduce(self) -> None:
        """Learn from the others where their processes are: the store would be asked by each for each."""
        try:
            self._waiting.peers.meet(self.gather_objects(self._waiting.peers.process, "attach()"))
        except BaseException:
            self.close()
            raise

    def _let_go(self) -> None:
        """Nobody waits any more for what is under way, which would keep its group, and that its threads."""
        for pending in self._under_way:
            pending.give_up()
        self._meetings.let_go()

    def _meet(self, event: str, step: int | None, payload: bytes) -> list[bytes]:
        self._monitor.check()
        return self._waiting.at_event(event, lambda: self._meetings.meet(event, step, payload))

    def _ask(self, operation: Request, label: Label) -> Pending:
        """Ask services, which count for themselves."""
        if self._is_elastic:  # one that asks itself alone would never learn that others have gone on
            self._waiting.look_for_missing(label, None)
        try:
            work, reply = self._services.ask((label.rule, label.unit), operation, label.step)
        except RuntimeError as error:
            raise self._waiting.broke(label, error) from error
        return self._sent(TorchPending(self._waiting, [work], reply, label, None))

    def _sent(self, pending: TorchPending | StreamPending) -> Pending:
        self._under_way.add(pending)
        return pending

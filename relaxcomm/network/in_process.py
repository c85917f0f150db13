"""N ranks in one process: deterministic, in virtual time, on the CPU where there are several."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar, cast

from torch import Tensor

from relaxcomm.errors import CommunicationError, UsageError, worded
from relaxcomm.fields.validation import shown
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.desks import Desk
from relaxcomm.network.link import EqualLinks, Link, SimulatedNetwork
from relaxcomm.network.operation_slots import Slot
from relaxcomm.network.operations import Label, Operation, Received, Request, tensors_of
from relaxcomm.network.reductions import Meeting, Objects
from relaxcomm.network.transport import Membership, Pending, Service, ServiceKey, Transport
from relaxcomm.network.virtual_time import World

T = TypeVar("T")
CodingSeconds: TypeAlias = Callable[[Label], float]


class InProcessGroup:
    """One rank's view of a simulation: pass it to `attach(..., process_group=group)`.

    Example:
        >>> import torch
        >>> from relaxcomm import Link, attach, simulate
        >>> def train(group):
        ...     model = torch.nn.Linear(1000, 1000)
        ...     with attach(model, None, "bsp", process_group=group):
        ...         begin = group.time()
        ...         group.sleep(1.0)
        ...         model(torch.ones(1, 1000)).sum().backward()
        ...         return round(group.time() - begin, 2)
        >>> simulate(train, 2, link=Link(bytes_per_second=4e6))
        [2.0, 2.0]
    """

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank

    def rank(self) -> int:
        """This rank, named as in a torch ProcessGroup."""
        return self._rank

    def size(self) -> int:
        """The number of ranks."""
        return self._world.size

    def time(self) -> float:
        """This rank's virtual clock, in seconds."""
        return self._world.clocks[self._rank]

    def sleep(self, seconds: float) -> None:
        """Let this rank compute for `seconds` of virtual time.

        Raises: UsageError for a time that is negative or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise UsageError(f"a rank cannot compute for {seconds!r} s; give seconds of at least 0")
        self._world.advance(self._rank, seconds)

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Let nothing that this rank does inside take virtual time, such as to evaluate.

        Where ranks have services, whoever waits for another inside comes to the time of that one.
        """
        self._world.stopped.add(self._rank)
        try:
            yield
        finally:
            self._world.stopped.discard(self._rank)

    def transport(self, coding_seconds: CodingSeconds = lambda label: 0.0) -> InProcessTransport:
        """A transport for this rank.

        Args:
            coding_seconds: that the rank works before each operation of a label, and after it.
        """
        return InProcessTransport(self._world, self._rank, coding_seconds)


class _InProcessPending(Pending):
    def __init__(self, world: World, rank: int, slot: Slot, label: str, decoding_seconds: float) -> None:
        self._world, self._rank, self._slot, self._label = world, rank, slot, label
        self._decoding_seconds = decoding_seconds

    def arrived(self) -> bool:
        return self._world.has_arrived(self._rank, self._slot)

    def wait(self) -> Received:
        received = cast(Received, self._world.wait(self._rank, self._slot, self._label))
        self._world.advance(self._rank, self._decoding_seconds)
        self._decoding_seconds = 0.0
        return received


class InProcessTransport(Transport):
    """Operations between the threads of one simulation; several have CPU tensors only."""

    def __init__(self, world: World, rank: int, coding_seconds: CodingSeconds) -> None:
        self._world, self._rank, self._coding_seconds = world, rank, coding_seconds
        self.counters = ByteCounters()
        self._number = world.transports[rank]  # a program may have several engines at once
        world.transports[rank] += 1
        self._desks: list[Desk] = []

    @property
    def membership(self) -> Membership:
        return Membership(self._rank, self._world.size)

    def now(self) -> float:
        return self._world.clocks[self._rank]

    def processor_seconds(self) -> float:
        return 0.0

    def issue(self, operation: Operation, label: Label) -> Pending:
        for tensor in tensors_of(operation) if self._world.size > 1 else ():
            if tensor.device.type != "cpu":
                raise CommunicationError(
                    f"in-process ranks share one autograd thread a GPU: CPU only, got {tensor.device}"
                )
        self.counters.add(label.rule, *self.traffic(operation))
        coding = self._coding_seconds(label)
        self._world.advance(self._rank, coding)
        if isinstance(operation, Request):
            slot = self._world.services.ask(self._rank, (self._number, label.rule, label.unit), operation)
        else:
            slot = self._world.post(self._rank, operation, str(label), label.rule)
        return _InProcessPending(self._world, self._rank, slot, str(label), coding)

    def serve(self, key: ServiceKey, service: Service, request: Tensor, reply: Tensor) -> None:
        desk = (self._number, *key)
        self._world.services.serve(self._rank, desk, service, self.counters)
        self._desks.append(desk)
        self.gather_objects(None, "the beginning of services")  # nobody asks before all serve

    def leave(self) -> None:
        goodbyes = [self._world.services.leave(self._rank, desk) for desk in self._desks]
        self._desks.clear()
        for slot in goodbyes:
            self._world.wait(self._rank, slot, "the end of services")

    def meet(self, event: str, step: int | None = None) -> None:
        self._meet(Meeting(), event, step)

    def gather_objects(self, value: object, event: str, step: int | None = None) -> list[object]:
        return cast("list[object]", self._meet(Objects(value), event, step))

    def _meet(self, operation: Objects, event: str, step: int | None) -> object:
        at = event if step is None else f"{event} in step {step}"
        slot = self._world.post(self._rank, operation, at)
        return self._world.wait(self._rank, slot, at)

    def announce(self, status: str) -> None:
        """Nothing to do: the scheduler sees every rank."""

    def close(self) -> None:
        """Nothing to give back."""


def single() -> Transport:
    """The transport of a world of one rank."""
    return InProcessGroup(World(1, EqualLinks(Link())), 0).transport()


def simulate(
    function: Callable[[InProcessGroup], T],
    world_size: int,
    *,
    link: Link | SimulatedNetwork | None = None,
) -> list[T]:
    """Run `function(group)` on every rank of an in-process world.

    Args:
        function: the training program of a rank.
        world_size: number of ranks, at least 1.
        link: each rank's latency and bandwidth, in virtual time; or a network of several links.

    Returns: what the ranks returned, in rank order.

    Raises: the error of the rank that failed first; DeadlockError if no rank could go on; UsageError for a
        number of ranks, or a link, that cannot be.

    Example:
        >>> from relaxcomm import simulate
        >>> simulate(lambda group: group.rank() * 10, 3)
        [0, 10, 20]
    """
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise UsageError(f"{world_size!r} ranks cannot be simulated; give a whole number of at least 1")
    link = link or Link()
    if not isinstance(link, Link | SimulatedNetwork):
        raise UsageError(
            f"{shown(link)} is no link; give one, such as Link(latency_seconds=0.005, bytes_per_second=1e7)"
        )
    world = World(world_size, EqualLinks(link) if isinstance(link, Link) else link)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        how = "has finished"
        try:  # also here it may be ended, when its turn comes
            world.gates[rank].wait()
            world.gates[rank].clear()
            results[rank] = function(InProcessGroup(world, rank))
        except BaseException as error:  # re-raised in the caller's thread
            errors.append(error)
            how = f"failed: {worded(error)}"
        finally:
            world.finished[rank] = how
            following = world.choose()
            if following is not None:
                world.gates[following].set()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    world.gates[0].set()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]

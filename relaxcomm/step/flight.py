"""Exchanges on their way: issued in an order that depends on launches only, never on completion."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable
from typing import TypeAlias

from torch import Tensor

from relaxcomm.composition.rule import Rule
from relaxcomm.fields.looked_at import error
from relaxcomm.network.operations import OPERATIONS, Label, Operation, Received, Request
from relaxcomm.network.transport import Pending
from relaxcomm.roles import Exchanging
from relaxcomm.roles.returned import entries
from relaxcomm.step.world import World

Program: TypeAlias = Generator[tuple[str, Operation], Received, Tensor]
"""Yields `(rule, operation)`, is sent what was received, returns the result."""


def labelled(label: str, rule: Rule, running: Exchanging, numel: int) -> Program:
    """The operations of an exchange as a rule's.

    Args:
        label: the rule's.
        rule: whose exchange and compressor these are.
        running: the exchange.
        numel: how many entries its result should have.

    Raises: PluginError for something else.
    """
    try:
        received = yield label, _checked(next(running), rule)
        while True:  # no operation is held here while it is on its way, nor what it sends
            received = yield label, _checked(running.send(received), rule)
    except StopIteration as stop:
        return entries(stop.value, numel, "run", rule.exchange, rule.compressor)


def _checked(operation: Operation, rule: Rule) -> Operation:
    if not isinstance(operation, OPERATIONS):
        raise error(operation, "yield an operation, such as AllReduce", "run yielded", rule.exchange)
    return operation


class Flight:
    """The exchange of one bucket.

    Args:
        program: what to issue.
        world: over which it goes.
        step, unit: of its operations' labels.
        operations: how many it will issue, as its primitives declare.
    """

    def __init__(self, program: Program, world: World, *, step: int, unit: int, operations: int) -> None:
        self._program, self._world = program, world
        self._step, self._unit = step, unit
        self._stage, self._operations = 0, operations  # issued so far, and in the end
        self._pending: Pending | None = None
        self._rule = ""  # of the operation on its way
        self._departed: float | None = None  # None where it goes to no other rank
        self._result: Tensor | None = None
        self.sends = False
        """Whether anything has gone to other ranks: one that asks its own service alone meets nobody."""

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._result is not None

    @property
    def result(self) -> Tensor:
        """What the program returned."""
        assert self._result is not None, "the flight has not landed"
        return self._result

    @property
    def has_more_to_issue(self) -> bool:
        """Whether another operation follows the one on its way."""
        return not self.done and self._stage < self._operations

    def is_behind(self, share: float) -> bool:
        """Whether fewer operations are on their way than should be after a share of its time."""
        return self.has_more_to_issue and self._stage <= share * self._operations

    def has_arrived(self) -> bool:
        """Whether landing would not have to wait."""
        if self.done or self._pending is None:
            return self.done
        return self._stage == self._operations and self._pending.arrived()

    def launch(self) -> None:
        """Issue the first operation."""
        self._resume(None)

    def advance(self) -> None:
        """Wait for the operation on its way and issue the next, or take the result."""
        assert self._pending is not None, "advance before launch"
        received = self._world.receive(self._pending)
        if self._departed is not None:
            self._world.statistics.in_flight.arrived(self._rule, self._departed)
        self._resume(received)

    def land(self) -> Tensor:
        """Advance to the end."""
        while not self.done:
            self.advance()
        return self.result

    def _resume(self, received: Received | None) -> None:
        try:
            self._rule, operation = next(self._program) if received is None else self._program.send(received)
        except StopIteration as stop:
            self._pending, self._result = None, stop.value
            return
        stays = isinstance(operation, Request) and operation.ranks == (self._world.rank,)
        self._departed = None if stays else self._world.statistics.in_flight.departed()
        self.sends = self.sends or not stays
        label = Label(self._step, self._rule, self._unit, self._stage)
        self._pending = self._world.issue(operation, label)
        self._stage += 1


class Landed(Flight):
    """A flight whose result is there, such as one that a checkpoint holds."""

    def __init__(self, result: Tensor) -> None:
        self._result = result
        self.sends = True  # which was counted when it did


class Pipeline:
    """Flights of one window: while a bucket is launched, the one before it goes on by one stage.

    Args:
        most_bytes: that may be on their way; a launch beyond waits until earlier flights have landed.
    """

    def __init__(self, most_bytes: float = math.inf) -> None:
        self._most_bytes = most_bytes
        self._flights: deque[tuple[Flight, int]] = deque()  # with their bytes
        self._num_bytes = 0  # of all

    def launch(self, flight: Flight, num_bytes: int = 0) -> None:
        """Issue a flight's first operation, then the next one of the flight before it.

        A flight whose last operation is on its way is left alone: waiting for it would hold up
        backward for nothing.
        """
        while self._flights and self._num_bytes + num_bytes > self._most_bytes:
            first, size = self._flights.popleft()
            first.land()
            self._num_bytes -= size
        flight.launch()
        if self._flights and self._flights[-1][0].has_more_to_issue:
            self._flights[-1][0].advance()
        self._flights.append((flight, num_bytes))
        self._num_bytes += num_bytes

    def finish(self) -> None:
        """Land all flights."""
        land_all(flight for flight, _ in self._flights)
        self._flights.clear()
        self._num_bytes = 0


def land_all(flights: Iterable[Flight]) -> None:
    """Advance flights in turn until every one has landed, so that their operations go on side by side."""
    flying = [flight for flight in flights if not flight.done]
    while flying:
        for flight in flying:
            flight.advance()
        flying = [flight for flight in flying if not flight.done]

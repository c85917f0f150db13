"""What legality sees of a rule: its primitives, of which it asks the facts, and its numbers."""

from __future__ import annotations

from typing import Literal, Protocol

from relaxcomm.roles import Compressor, Exchange, Outer, Payload, Trigger


class RuleParts(Protocol):
    """A rule, whoever declares it."""

    @property
    def trigger(self) -> Trigger: ...

    @property
    def payload(self) -> Payload: ...

    @property
    def compressor(self) -> Compressor: ...

    @property
    def exchange(self) -> Exchange: ...

    @property
    def outer(self) -> Outer: ...

    @property
    def delay(self) -> int | Literal["unbounded"]: ...

    @property
    def select(self) -> tuple[str, ...] | None: ...

    @property
    def moves_parameters(self) -> bool: ...

    @property
    def active(self) -> tuple[int, int | None]: ...

    @property
    def makes_replicas_equal(self) -> bool: ...

    @property
    def keeps_replicas_equal_while_active(self) -> bool: ...

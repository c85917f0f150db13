"""A rank's link, as seen by the rank: who can train over it, and what it sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.lab.contenders import Contender, EveryStep, Nothing, Relaxcomm
from benchmarks.lab.network import sent_bytes
from benchmarks.lab.networks import RATE_FILE
from benchmarks.lab.rivals import RIVALS
from benchmarks.lab.throttle import CAN, CANNOT, throttle_of

Contenders = Mapping[str, Callable[..., Contender]]

CONTENDERS: Contenders = {"nothing": Nothing, "every_step": EveryStep, "relaxcomm": Relaxcomm, **RIVALS}


class Link(Protocol):
    """A rank's link."""

    @property
    def contenders(self) -> Contenders:
        """Who can train over it, by name."""

    def sent_bytes(self) -> int:
        """What went over it so far."""


class HostsLink:
    """Of a host of its own; it is shaped from outside, and the kernel counts."""

    contenders = CONTENDERS

    def sent_bytes(self) -> int:
        return sent_bytes()


class ThrottledLink:
    """A throttle, which counts, too.

    Args:
        rate: as `tc` writes it, or None.
    """

    def __init__(self, rate: str | None) -> None:
        self._throttle = throttle_of(rate)
        self.contenders = {name: partial(one, throttle=self._throttle) for name, one in CAN.items()}

    def sent_bytes(self) -> int:
        return self._throttle.sent_bytes


def own_link() -> Link:
    """The link of this process, for the next trial."""
    if (path := os.environ.get(RATE_FILE)) is None:
        return HostsLink()
    return ThrottledLink(Path(path).read_text() or None)


def left_out(network: str, contenders: Mapping[str, str]) -> dict[str, str]:
    """Which of the contenders, given by label, cannot train over a network, and why."""
    if network != "throttle":
        return {}
    return {label: CANNOT for label, contender in contenders.items() if contender not in CAN}

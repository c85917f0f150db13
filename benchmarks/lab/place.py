"""Where contenders are compared."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """What contenders are compared at.

    Args:
        workload: its name.
        workers: their number.
        rate: of their links, or None.
        network: as records are marked.
    """

    workload: str
    workers: int
    rate: str | None
    network: str = "namespaces"

    def title(self) -> str:
        """For readers."""
        throttled = " (throttled at the transport, not a network)" if self.network == "throttled" else ""
        return f"{self.workload}, {self.workers} workers, {self.rate or 'unshaped'}{throttled}"

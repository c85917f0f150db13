"""Counts of bytes that one rank has moved, by what they were for."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

EVALUATION = "evaluation"
"""The label of what is sent to make the model that is looked at (`Engine.averaged`, `Engine.close`), and of
what ranks ask servers in `Engine.together`."""
RECOVERY = "recovery"
"""The label of what ranks send when a generation of them begins."""


@dataclass
class ByteCounters:
    """Bytes that this rank handed to, and took from, the network since attach.

    Args:
        sent: to all others for training: for all purposes but evaluation.
        received: from all others for training.
        by_rule: `(sent, received)` by the rule of the operations' labels, evaluation's among them.
    """

    sent: int = 0
    received: int = 0
    by_rule: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Services count in threads of their own.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, rule: str, sent: int = 0, received: int = 0) -> None:
        """Count what was moved for a rule."""
        with self._lock:
            self._add(rule, sent, received)

    def relabel(self, rule: str, other: str, sent: int, received: int) -> None:
        """Count under another label what was, or is about to be, counted for a rule."""
        with self._lock:
            self._add(rule, -sent, -received)
            self._add(other, sent, received)

    def _add(self, rule: str, sent: int, received: int) -> None:
        before = self.by_rule.get(rule, (0, 0))
        self.by_rule[rule] = before[0] + sent, before[1] + received
        if rule != EVALUATION:
            self.sent += sent
            self.received += received

    @property
    def evaluation(self) -> tuple[int, int]:
        """Sent and received for evaluation."""
        return self.by_rule.get(EVALUATION, (0, 0))

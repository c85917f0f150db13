"""What the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: of what was looked at, one word.
        level: "problem" if a run will fail or hang, "warning" if it may, or will be slow.
        text: what was seen.
        remedy: what to do about it; empty if all is well.
    """

    name: str
    level: Level
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(name, "ok", text)

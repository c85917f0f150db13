"""Waiting for what is true sooner or later, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.ranks import PATIENCE_SECONDS

T = TypeVar("T")


def until(look: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """What `look` returns once it is true; a server that does not answer yet is asked again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = look()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not in {seconds:g} s, last seen {found}"
        time.sleep(0.05)

"""Sessions that nobody has closed when the process exits: their logs are ended, and what differs is said."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from relaxcomm.engine import attached_models, idle
from relaxcomm.engine.metering import Metering
from relaxcomm.errors import worded
from relaxcomm.network.endings import ended_at_exit
from relaxcomm.replica.replica import Replica
from relaxcomm.step.bound import Bound


class Unclosed(Protocol):
    """What is left of a run."""

    metering: Metering
    replica: Replica

    @property
    def bound(self) -> Bound:
        """The algorithm that runs now, on the model."""


def _end(session: Unclosed) -> None:
    """End what this rank has for itself, and ask nobody: the others may be gone."""
    error = getattr(sys, "last_value", None)  # which has ended the process, outside a `with` block
    if error is None and session.replica.model in attached_models.all_attached():
        idle.warn_of_unclosed(session.bound)
    with suppress(Exception):  # such as a device that failed: what else is to be ended has its turn
        session.metering.close("not closed" if error is None else f"failed: {worded(error)}")


open_sessions: WeakSet[Unclosed] = ended_at_exit(_end)
"""Those of this process."""

os.register_at_fork(after_in_child=open_sessions.clear)  # which are its parent's to close

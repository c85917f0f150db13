"""The job's own process group, which the transports find each other by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from relaxcomm.network.default_group import is_launched, make_default_group
from relaxcomm.network.secret import Secret


@contextmanager
def process_group(timeout_seconds: float, secret: Secret | None) -> Iterator[None]:
    """The default group, on which nothing is sent: the engine makes groups of its own."""
    if not is_launched():
        yield
        return
    make_default_group(timeout_seconds, secret)
    yield
    # Not in a `finally`: after a failure it could wait for ranks that are gone.
    dist.destroy_process_group()

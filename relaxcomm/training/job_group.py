"""The job's own process group, which the transports find each other by, and what simulates a link on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from relaxcomm.config import Config
from relaxcomm.network import Throttle, ThrottledTransport
from relaxcomm.network.default_group import is_launched, make_default_group


@contextmanager
def process_group(config: Config) -> Iterator[None]:
    """The default group, on which nothing is sent: the engine makes groups of its own."""
    membership = config.membership
    if not is_launched(elastic=membership.elastic):
        yield
        return
    make_default_group(config.timeout_seconds, membership.read_secret())
    yield
    # Not in a `finally`: after a failure it could wait for ranks that are gone.
    dist.destroy_process_group()


def throttled(config: Config, device: torch.device, throttle: Throttle) -> ThrottledTransport:
    """torch.distributed over a simulated link."""
    return ThrottledTransport(
        throttle,
        device=device,
        backend=config.backend,
        timeout_seconds=config.timeout_seconds,
        debug=config.debug,
        secret=config.membership.read_secret(),
    )

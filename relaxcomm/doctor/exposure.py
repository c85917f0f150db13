"""What a job would listen on, as far as this machine's addresses are public ones."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator

from relaxcomm.config import Config
from relaxcomm.doctor import interfaces
from relaxcomm.doctor.diagnosis import Finding, ok
from relaxcomm.monitoring.metrics_settings import EVERYWHERE


def findings(settings: Config | None) -> list[Finding]:
    """Whether the world reaches what a job listens on, and what decides who joins.

    Args:
        settings: the job's configuration, if it is known.
    """
    return [*_joining(settings), *_metrics(settings)]


def _joining(settings: Config | None) -> Iterator[Finding]:
    """The store and Gloo, of a job whose ranks are named."""
    if "MASTER_ADDR" not in os.environ:
        return
    # The store of torchrun, or of another launcher, listens on all addresses.
    public = _public(EVERYWHERE[0] if "TORCHELASTIC_RUN_ID" in os.environ else interfaces.gloo_address()[1])
    if not public:
        yield ok("listening", "the store and gloo are at no public address")
    elif settings is not None and settings.membership.secret is not None:
        yield ok("listening", f"at {', '.join(public)}, which are public; who joins needs membership.secret")
    else:
        said = (
            "no secret is asked for" if settings is not None else "whether a secret is asked for is not known"
        )
        yield Finding(
            "listening",
            "warning",
            f"the store and gloo are reached at {', '.join(public)}, which are public, and {said}",
            "set membership: {secret: {env: NAME}} and use a private network, see docs/security.md; "
            "`relaxcomm doctor CONFIG` looks at a configuration",
        )


def _metrics(settings: Config | None) -> Iterator[Finding]:
    if settings is None or settings.metrics is None or settings.metrics.port is None:
        return
    public = _public(settings.metrics.address)
    if public:
        yield Finding(
            "metrics",
            "warning",
            f"metrics.address {settings.metrics.address}: everybody reads them at {', '.join(public)}",
            "bind them to a private address, or leave metrics.address out and use an ssh tunnel",
        )


def _public(address: str) -> list[str]:
    """The public addresses at which something is reached that listens at one."""
    known = [one for found in interfaces.addresses().values() for one in found]
    listed = known if address in EVERYWHERE else [one for one in known if one == address]
    return [one for one in listed if ipaddress.ip_address(one).is_global]

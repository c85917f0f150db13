"""The default process group, made by us where a launcher has named the ranks and nobody else has made it."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network.liveness import without_frames
from relaxcomm.network.rendezvous import CONNECTING, Rendezvous, next_name, set_limit
from relaxcomm.network.seal import agree
from relaxcomm.network.secret import Secret
from relaxcomm.network.signed_store import read_all, signed
from relaxcomm.network.store_client import await_store
from relaxcomm.network.store_server import serve_store
from relaxcomm.network.transport import Membership
from relaxcomm.system.environment import (
    attempt_in_store,
    check_rendezvous,
    launched,
    launcher_holds_store,
    missing_variables,
)
from relaxcomm.system.network_interface import (
    address_towards,
    first_address,
    is_only_here,
    use_interface_of,
)
from relaxcomm.system.slurm import follow_srun

_FREE_PORT = "a MASTER_PORT at which nobody else listens"
_met: list[tuple[Any, int, int]] = []
_served: list[Any] = []
_signed: list[Any] = []  # torch holds a store of Python's, but not what is Python's of it


def is_launched(*, elastic: bool) -> bool:
    """Whether a launcher has started several ranks, and no default group is there.

    Args:
        elastic: whether others may join, so that one rank that a launcher has started is enough.

    Raises: ConfigError for variables that no launcher has set so.
    """
    if dist.is_initialized():
        return False
    follow_srun()
    return launched().world_size > 1 or (elastic and not missing_variables())


def _find_store(seconds: float) -> None:
    """Hold the store, or wait until it can be reached.

    Raises: CommunicationError if it cannot.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_held = launcher_holds_store()
    if launched().rank > 0 or is_held:
        named = "torchrun's --local-addr" if is_held else "MASTER_ADDR"
        await_store(
            host,
            port,
            seconds,
            holder="the launcher" if is_held else "rank 0",
            remedy=f"start it, with the address of its host as {named}, and {_FREE_PORT}",
        )
    elif not is_hidden(host):
        with suppress(OSError):  # else torch listens everywhere, or says what is wrong
            _served.append(serve_store(host, port))


def is_hidden(host: str) -> bool:
    """Whether others know it by another address, and there are others."""
    return is_only_here(host) and launched().local_world_size < launched().world_size


def make_default_group(timeout_seconds: float, secret: Secret | None = None) -> None:
    """Make it, over Gloo; once it was destroyed it can be made again.

    Each has keys of its own in the one store, which lives as long as the process: a group that finds the
    addresses of the one before, or of the attempt before an elastic restart, waits for ranks that are gone.

    Args:
        timeout_seconds: the longest wait for the other ranks.
        secret: that all share, or None.

    Raises: CommunicationError if one does not come; ConfigError for variables that no launcher has set so;
        ForgeryError or ConfigError if ranks do not have the same secret.
    """
    check_rendezvous()
    here, limit = launched(), timedelta(seconds=timeout_seconds)
    hidden = is_hidden(os.environ["MASTER_ADDR"])
    if not hidden:
        use_interface_of(address_towards(os.environ["MASTER_ADDR"]))
    try:
        if not _met:
            _find_store(timeout_seconds)
            _met.append(next(iter(rendezvous("env://", timeout=limit))))
        store, own, size = _met[0]
        store.set_timeout(limit)
        name = next_name(store, f"relaxcomm/{attempt_in_store()}", own)
        checked = signed(store, secret)
        _signed.append(checked)
        named = dist.distributed_c10d.PrefixStore(name, checked)
        named.set_timeout(limit)
        named.set(f"master/{own}", "" if hidden else first_address(os.environ["MASTER_ADDR"]))
        agree(Rendezvous(checked, name, Membership(own, size), tuple(range(size)), limit, limit, secret))
        if hidden:  # those on other hosts know its address
            seen = [one.decode() for one in read_all(named, [f"master/{rank}" for rank in range(size)])]
            use_interface_of(next(filter(None, seen), ""))
        dist.init_process_group(
            "gloo", store=named, rank=own, world_size=size, timeout=limit / CONNECTING
        )  # all are there, and connect within the limit
        set_limit(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")), limit)
    except ConfigError:
        raise
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            raise CommunicationError(
                f"rank {here.rank} cannot hold the store: port {os.environ['MASTER_PORT']} (MASTER_PORT) is "
                f"taken on this host; end the program that listens there, or set {_FREE_PORT}"
            ) from None
        raise CommunicationError(
            f"rank {here.rank} of {here.world_size} has not met the others within {timeout_seconds:g} s "
            f"(timeout_seconds): {without_frames(error).splitlines()[0]}"
        ) from error

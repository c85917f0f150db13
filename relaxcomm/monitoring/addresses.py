"""Which port is whose, and how the ranks of a job find each other's exporters."""

from __future__ import annotations

import datetime
import errno
import itertools
import os
import secrets
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry

from relaxcomm.errors import MetricsWarning
from relaxcomm.monitoring.exporter import Exporter, Target
from relaxcomm.monitoring.metrics_settings import EVERYWHERE, MetricsConfig
from relaxcomm.network.transport import Transport
from relaxcomm.system import slurm
from relaxcomm.system.environment import restart_count
from relaxcomm.system.network_interface import address_towards
from relaxcomm.system.tcp import before_port
from relaxcomm.system.this_host import this_host
from relaxcomm.system.warn import warn

_PATIENCE_SECONDS = 3.0


def name_run(
    settings: MetricsConfig, algorithm: str, taken: Collection[str] = (), *, first_rank: int = 0
) -> str:
    """The value of the label `run`: the same after an elastic restart where the launcher has an id.

    Where it has none, no other run gets the same one, not even one of another process in the same second.

    Args:
        settings: that may give it.
        algorithm: its name.
        taken: names of engines of this process that are open; one like these gets a number.
        first_rank: the job's rank of the run's rank 0. A job may have several runs, each of some of its
            ranks; those without its rank 0 get the first of theirs.
    """
    launcher = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if launcher == "none":
        launcher = slurm.run_id() or f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    name = settings.run or f"{algorithm}-{launcher}"
    name += f"-rank{first_rank}" if first_rank else ""
    numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(one for one in numbered if one not in taken)


def open_exporters(
    settings: MetricsConfig, transport: Transport, registry: CollectorRegistry, run: str
) -> Exporter | None:
    """Start this rank's exporter and tell rank 0 of all; None if it cannot be had. On every rank."""
    rank = transport.process.rank
    hosts = transport.gather_all(this_host("net"), "attach()")
    exporter = open_exporter(settings, hosts[:rank].count(hosts[rank]), registry, run)
    mine = own_target(exporter, settings, rank)
    try:
        targets = transport.gather_all(mine, "attach()")
    except BaseException:
        if exporter is not None:
            exporter.close()
        raise
    if rank == 0 and exporter is not None and mine is not None:
        exporter.targets = seen_from(mine, targets, settings)
        if len(set(hosts)) > 1 and settings.is_local:
            warn(
                f"this job spans {len(set(hosts))} hosts, but its exporters are bound to {settings.address} "
                "and cannot be reached from outside; the key metrics.address changes that, "
                '"0.0.0.0" binds them to all interfaces',
                MetricsWarning,
            )
    return exporter


def open_exporter(
    settings: MetricsConfig, local_rank: int, registry: CollectorRegistry, run: str
) -> Exporter | None:
    """An exporter on the port of this rank, or on another one if that is taken."""
    assert settings.port is not None
    port = settings.port + local_rank if settings.port else 0
    # The rank that an elastic restart has just ended may not have given its port back yet.
    deadline = time.monotonic() + (_PATIENCE_SECONDS if restart_count() else 0.0)
    while True:
        try:
            return Exporter(settings.address, port, registry, run)
        except (OSError, OverflowError) as error:
            is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            problem = error
        if not is_taken or time.monotonic() >= deadline:
            break
        time.sleep(0.1)
    address = f"{settings.address}:{port}"
    if is_taken:
        exporter = Exporter(settings.address, 0, registry, run)
        what = f"is taken, so they are at {settings.address}:{exporter.port} instead"
    else:
        exporter, what = None, f"cannot be had ({problem}), so training goes on without them"
    warn(
        f"the metrics of local rank {local_rank} belong at {address}, which {what}; choose with "
        "metrics: {port: …, address: …}",
        MetricsWarning,
    )
    return exporter


def _host(settings: MetricsConfig) -> str:
    """Where others find this rank."""
    if settings.address not in EVERYWHERE:
        return settings.address
    return address_towards(os.environ.get("MASTER_ADDR", "127.0.0.1")) or socket.gethostname()


def own_target(exporter: Exporter | None, settings: MetricsConfig, rank: int) -> Target | None:
    """Where others find the exporter of this rank, if there is one."""
    return None if exporter is None else Target(rank, _host(settings), exporter.port, this_host("net"))


def seen_from(here: Target, targets: Sequence[Target | None], settings: MetricsConfig) -> list[Target]:
    """The exporters that there are; bound to all interfaces, those of this host are where it is asked."""
    everywhere, found = settings.address in EVERYWHERE, []
    for one in filter(None, targets):
        host = "" if everywhere and one.network == here.network else one.host
        found.append(replace(one, host=before_port(host)))
    return found

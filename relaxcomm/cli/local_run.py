"""A job on local workers, by the launcher that its configuration needs."""

from __future__ import annotations

from typing import Annotated

import typer

from relaxcomm.cli.elastic_launcher import RESTARTS, launch_elastic
from relaxcomm.cli.job import Job
from relaxcomm.cli.launcher import LOOPBACK, launch
from relaxcomm.config import Config
from relaxcomm.errors import ConfigError
from relaxcomm.training.results import Result

Restarts = Annotated[
    int | None,
    typer.Option(
        "--max-restarts",
        min=0,
        metavar="N",
        help=f"Of each worker, in an elastic run; {RESTARTS} unless given.",
        show_default=False,
    ),
]

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST[:PORT]",
        help="Of this machine, where others join an elastic run; else only workers of this machine can.",
        show_default=False,
    ),
]


def run(
    job: Job,
    loaded: Config,
    *,
    restarts: int | None = None,
    address: str | None = None,
    verbose: bool = False,
) -> Result:
    """Train on local workers.

    Args:
        job: what each does.
        loaded: its configuration.
        restarts: of each worker, at most, in an elastic run; None for the usual number.
        address: where others join an elastic run; None for this host alone.
        verbose: let the launcher log.

    Raises: ConfigError, RunFailed.
    """
    if loaded.membership.elastic:
        most = RESTARTS if restarts is None else restarts
        where = LOOPBACK if address is None else address
        return launch_elastic(
            job.train, loaded.workers, configuration=job.values, restarts=most, address=where
        )
    for option, value in (("--max-restarts", restarts), ("--address", address)):
        if value is not None:
            raise ConfigError(
                f"{option}: workers begin again, and others join, in elastic runs alone; set membership: "
                "{elastic: true}, or leave the option out"
            )
    return launch(job.train, loaded.workers, verbose=verbose)

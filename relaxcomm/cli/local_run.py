"""A job on local workers, by the launcher that its configuration needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from relaxcomm.cli.elastic_launcher import RESTARTS, launch_elastic
from relaxcomm.cli.job import Job
from relaxcomm.cli.launcher import LOOPBACK, launch
from relaxcomm.cli.options import option, written
from relaxcomm.config import Config
from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Index
from relaxcomm.topology import file
from relaxcomm.training.results import Result

Restarts = Annotated[
    int | None,
    option(
        f"Of each worker, in an elastic run; {RESTARTS} unless given.",
        "--max-restarts",
        metavar="N",
        parser=written(Index),
    ),
]

Address = Annotated[
    str | None,
    option(
        "Of this machine, where others join an elastic run; else only workers of this machine can.",
        "--address",
        metavar="HOST[:PORT]",
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
        admits = all(one.is_collective for one in loaded.algorithms)
        most = restarts if restarts is not None else RESTARTS if admits else 0
        where = LOOPBACK if address is None else address
        job = replace(job, values=_with_whole_paths(job.values, loaded))
        return launch_elastic(
            job.train, loaded.workers, configuration=job.values, restarts=most, address=where
        )
    for name, value in (("--max-restarts", restarts), ("--address", address)):
        if value is not None:
            raise ConfigError(
                f"{name}: workers begin again, and others join, in elastic runs alone; set membership: "
                "{elastic: true}, or leave the option out"
            )
    return launch(job.train, loaded.workers, verbose=verbose)


def _with_whole_paths(values: Mapping[str, Any], loaded: Config) -> dict[str, Any]:
    """A configuration that means the same to who joins from another folder."""
    made = dict(values)
    if loaded.checkpoint is not None:
        made["checkpoint"] = {**values["checkpoint"], "path": os.path.abspath(loaded.checkpoint.path)}
    if loaded.output is not None:
        made["output"] = os.path.abspath(loaded.output)
    if isinstance(loaded.topology, file):
        made["topology"] = {"file": {"path": os.path.abspath(loaded.topology.path)}}
    secret = loaded.membership.secret
    if secret is not None and secret.file is not None:
        made["membership"] = {**values["membership"], "secret": {"file": os.path.abspath(secret.file)}}
    return made

"""A job on local workers, by the launcher that its configuration needs."""

from __future__ import annotations

from relaxcomm.cli.elastic_launcher import launch_elastic
from relaxcomm.cli.job import Job
from relaxcomm.cli.launcher import launch
from relaxcomm.config import Config
from relaxcomm.training.results import Result


def run(job: Job, loaded: Config, *, verbose: bool = False) -> Result:
    """Train on local workers.

    Args:
        job: what each does.
        loaded: its configuration.
        verbose: let the launcher log.

    Raises: ConfigError, RunFailed.
    """
    if loaded.membership.elastic:
        return launch_elastic(job.train, loaded.workers)
    return launch(job.train, loaded.workers, verbose=verbose)

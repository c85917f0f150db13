"""`relaxcomm train`: train one task with one algorithm."""

from __future__ import annotations

import datetime
import os
from typing import Annotated

import torch

from relaxcomm.cli.exit_codes import readable
from relaxcomm.cli.job import ConfigPath, Sets, Workers, is_worker, read_job, tell_of_phases
from relaxcomm.cli.local_run import Address, Restarts, run
from relaxcomm.cli.options import Traceback, option
from relaxcomm.cli.table import show
from relaxcomm.config import Config
from relaxcomm.config.unread_keys import check_workers
from relaxcomm.errors import ConfigError
from relaxcomm.system.environment import launched
from relaxcomm.system.slurm import unused_tasks
from relaxcomm.system.telling import tell
from relaxcomm.training import trainer
from relaxcomm.training.results import Result


def train(
    config: ConfigPath,
    algorithm: Annotated[
        str | None, option("Instead of the configuration's and its phases.", metavar="NAME")
    ] = None,
    workers: Workers = None,
    sets: Sets = None,
    max_restarts: Restarts = None,
    address: Address = None,
    traceback: Traceback = False,
) -> None:
    """Train the configured task, on local workers or as one rank that torchrun or srun has started."""
    with readable(traceback):
        is_rank = is_worker()
    with readable(traceback, prefix=f"rank {os.environ['RANK'][:10]}: " if is_rank else ""):
        if is_rank and (max_restarts is not None or address is not None):
            raise ConfigError("--max-restarts and --address are for workers that this command starts itself")
        configured = read_job(config)
        job = configured.override(workers, sets, algorithm)
        loaded = job.load_for_training()
        if is_rank:
            check_workers(loaded, launched().world_size)
        if launched().rank == 0:
            tell_of_phases(configured, [job])
        if is_rank:
            outcome = trainer.train(loaded)
            if outcome.rank == 0:
                finish(loaded, outcome.result)
            return
        if (hint := unused_tasks()) is not None:
            tell(f"on this host alone, workers: {loaded.workers}. {hint}")
        finish(loaded, run(job, loaded, restarts=max_restarts, address=address, verbose=traceback))


def finish(loaded: Config, result: Result) -> None:
    """Write the result to the output folder, if there is one, and show it; the reader may be gone by then."""
    path = None if loaded.output is None else result.write(loaded.output, provenance(loaded))
    show([result])
    for change in result.changes:
        print(change.words)
    if path is not None:
        print(f"result: {path}")


def provenance(loaded: Config) -> dict[str, object]:
    """What a result must carry so that it can be made again."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "configuration": loaded.model_dump(exclude={"algorithm"}),
    }

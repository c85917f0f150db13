"""The training job that `relaxcomm train` runs on every rank."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from relaxcomm.config import Config
from relaxcomm.errors import ConfigError
from relaxcomm.network import Link, Throttle
from relaxcomm.system.environment import launched
from relaxcomm.system.telling import tell
from relaxcomm.tasks.task_loader import find_task
from relaxcomm.training.devices import choose_device, device_name, why_on_cpu
from relaxcomm.training.job_group import process_group, throttled
from relaxcomm.training.results import Result, merge
from relaxcomm.training.training_run import Run


class Outcome(NamedTuple):
    """What came of a run on this rank.

    Args:
        result: the same on every rank; holds the bytes of all that were there at the end.
        rank: of this one, at the end.
    """

    result: Result
    rank: int


def train(config: Config, link: Link | None = None) -> Outcome:
    """Train the configured task on this rank, together with the other ranks of the environment.

    Rank and world size come from torchrun's environment variables; without them this is the only rank.

    Args:
        config: the configuration.
        link: what is simulated between this rank and the others, or None.

    Raises: ConfigError for a task or device that is not there; CommunicationError if a peer fails.
    """
    if config.membership.elastic and "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "membership.elastic: torchrun ends all workers when one ends, so nobody would go on; start with "
            "`relaxcomm train` alone, see docs/elastic.md, or leave it out"
        )
    process = launched()
    rank = process.rank
    device = _own_device(config, rank, process.local_world_size)
    factory = find_task(config.task)
    task = factory.build(config.seed)
    task.model.to(device)
    torch.manual_seed(config.seed + rank)  # every rank its own dropout
    with process_group(config):
        transport = None if link is None else throttled(config, device, Throttle(link))
        run = Run(config, task, device, transport)
        records = run.run()
        result = merge(
            records,
            algorithm=config.algorithm.name,
            composition=repr(config.algorithm),
            task=factory.name,
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            device=device_name(device),
            seed=config.seed,
            link=None if link is None else link.words,
            changes=tuple(run.ranks.changes),
        )
        return Outcome(result, run.ranks.rank)


def _own_device(config: Config, rank: int, local_workers: int) -> torch.device:
    """The device of this rank, as its current one."""
    device = choose_device(config, local_workers)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not rank and (reason := why_on_cpu(device, config, local_workers)) is not None:
        tell(reason)
    return device

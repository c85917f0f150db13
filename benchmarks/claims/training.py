"""One run of a trial: simulated workers, quality of their mean model, what was exchanged."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import relaxcomm
from benchmarks.claims.settings import SETTINGS, Setting, make_optimizer

SLOW = 5.0  # how many times as long the first worker computes, where workers may differ in speed


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An algorithm in a setting.

    Args:
        algorithm: as YAML has it.
        data: of the configuration.
        optimizer: its kind; None for the setting's.
        batch_size: None for the setting's.
        more: of the configuration.
        uneven: whether the first worker is slow.
    """

    algorithm: Any
    data: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
    batch_size: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    uneven: bool = False

    @property
    def key(self) -> str:
        """The same for the same trial."""
        return json.dumps(vars(self), sort_keys=True, default=repr)

    def kind(self, setting: Setting) -> str:
        """Of its optimizer."""
        return self.optimizer or setting.optimizer


@dataclass(frozen=True)
class Run:
    """What one run needs to be told, picklable."""

    setting: str
    trial: Trial
    rate: float
    seed: int


def train(run: Run) -> dict[str, float]:
    """The quality that is left (higher is better), and counts of the first worker."""
    setting, trial = SETTINGS[run.setting], run.trial
    torch.set_num_threads(1)

    def worker(group: relaxcomm.InProcessGroup) -> dict[str, float]:
        task = setting.make(run.seed)
        optimizer = make_optimizer(trial.kind(setting), task, run.rate)
        data = {"partition": setting.partition, **trial.data}
        settings = {"algorithm": trial.algorithm, "seed": run.seed, "data": data, **trial.more}
        sign = 1 if task.higher_is_better else -1
        seconds = SLOW if trial.uneven and group.rank() == 0 else 1.0
        reached, best = math.inf, -math.inf
        with relaxcomm.attach(task.model, optimizer, settings, process_group=group) as engine:
            loader = engine.loader(task.train_data, batch_size=trial.batch_size or setting.batch_size)
            for _ in range(setting.epochs):
                for batch in loader:
                    group.sleep(seconds)
                    task.loss(task.model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                with engine.averaged(), torch.no_grad():
                    task.model.eval()
                    best = sign * task.evaluate(task.model)
                    task.model.train()
                if best >= setting.target and reached == math.inf:
                    reached = engine.statistics["synchronisations"]
            trained = dict(engine.statistics)
        return {
            "quality": best,
            "exchanges_to_target": reached,
            "lssr": trained["lssr"],
            "steps": trained["steps"],
            "exchanges": trained["synchronisations"],
            "megabytes": trained["bytes_sent"] / 1e6,
        }

    with warnings.catch_warnings():
        # Some trials are meant never to exchange.
        warnings.simplefilter("ignore", relaxcomm.CompositionWarning)
        try:
            return relaxcomm.simulate(worker, setting.workers)[0]
        except relaxcomm.NonFiniteError:
            return dict.fromkeys(("lssr", "steps", "exchanges", "megabytes"), math.nan) | {
                "quality": -math.inf,
                "exchanges_to_target": math.inf,
            }

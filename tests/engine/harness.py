"""Runs a scenario on real gloo processes or on in-process ranks, and trains the small models there.

A scenario is `scenario(world, *args)` at module level; it returns something picklable.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import relaxcomm
from tests.models import CASES, make_optimizer, take_step, trainable
from tests.ranks import PATIENCE_SECONDS, run_ranks
from tests.references import Workers, flatten

Scenario = Callable[..., Any]


@dataclass(frozen=True)
class World:
    """Where a scenario runs: its rank, how many there are, what attach is given, and where models lie."""

    rank: int
    size: int
    group: Any = None
    device: torch.device | str = "cpu"

    def attach(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, config: Any, **options: Any
    ) -> relaxcomm.Engine:
        """`relaxcomm.attach` on this world's ranks; a mapping gets small buckets unless it says otherwise."""
        if isinstance(config, dict):
            config = {"bucket_bytes": 512, "timeout_seconds": 60, **config}
        return relaxcomm.attach(model, optimizer, config, process_group=self.group, **options)


def in_rank_process(rank: int, scenario: Scenario, size: int, args: tuple[Any, ...]) -> Any:
    """The function that a pool process runs."""
    return scenario(World(rank, size), *args)


def on_gloo(
    scenario: Scenario, size: int, *args: Any, debug: bool = False, timeout: float = PATIENCE_SECONDS
) -> list[Any]:
    """Results of `scenario` on `size` processes."""
    return run_ranks(in_rank_process, size, scenario, size, args, debug=debug, timeout=timeout)


def in_process(scenario: Scenario, size: int, *args: Any) -> list[Any]:
    """Results of `scenario` on `size` ranks in threads."""
    return relaxcomm.simulate(lambda group: scenario(World(group.rank(), size, group), *args), size)


def engine_state(engine: relaxcomm.Engine) -> dict[str, Any]:
    """What a rank's engine keeps, without its name."""
    ((state,),) = engine.state_dict().values()
    return state


def values(model: nn.Module) -> NDArray[np.float64]:
    """All trainable parameters in one vector."""
    return flatten([parameter for parameter in model.parameters() if parameter.requires_grad])


def train(
    world: World, config: Any, steps: int, optimizer: str = "momentum", case: str = "toy", decay: float = 1.0
) -> list[NDArray[np.float64]]:
    """The parameters after every step and after close; the ranks start from different parameters."""
    task = CASES[case]
    model, optim = trainable(case, optimizer, seed=world.rank)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optim, decay)
    history = []
    with world.attach(model, optim, config):
        for step in range(steps):
            task.local_loss(model, step, world.rank).backward()
            optim.step()
            scheduler.step()
            optim.zero_grad()
            history.append(values(model))
    return [*history, values(model)]


def saved_and_loaded(world: World, config: Any, steps: int, stop: int) -> list[NDArray[np.float64]]:
    """Train, save after `stop` steps, load into a new model and engine, and go on to `steps`."""
    case, file, history = CASES["toy"], io.BytesIO(), []
    for span in (range(stop), range(stop, steps)):
        model, optimizer = trainable("toy", "momentum", seed=world.rank)
        with world.attach(model, optimizer, config) as engine:
            parts = model, optimizer, engine
            if span.start:
                file.seek(0)
                for part, state in zip(parts, torch.load(file, weights_only=False), strict=True):
                    part.load_state_dict(state)
            for step in span:
                take_step(case.local_loss(model, step, world.rank), optimizer)
                history.append(values(model))
            if span.stop == stop:
                torch.save([part.state_dict() for part in parts], file)
            engine.close(average=False)
    return history


def simulated_workers(
    size: int, optimizer: str = "momentum", case: str = "toy", decay: float = 1.0
) -> Workers:
    """The workers of a reference, all starting from the parameters of rank 0."""
    task = CASES[case]
    models = [task.model(seed=0) for _ in range(size)]
    optimizers = [make_optimizer(optimizer, model) for model in models]
    return Workers(models, optimizers, task.local_loss, decay)


def assert_histories_agree(
    results: list[list[NDArray[np.float64]]], expected: list[NDArray[np.float64]], tolerance: float = 1e-9
) -> None:
    """Hold the history of every rank against the rows of the reference."""
    for step, rows in enumerate(expected):
        for rank, history in enumerate(results):
            np.testing.assert_allclose(
                history[step],
                rows[rank],
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"rank {rank}, after step {step}",
            )
    assert all(len(history) == len(expected) for history in results)


def assert_resumes(config: dict[str, Any]) -> list[Any]:
    """Hold 20 steps on 3 ranks against as many with a checkpoint between; returns what was saved."""
    whole = [history for history, _ in in_process(_part, 3, config, 0, 20, None)]
    first = in_process(_part, 3, config, 0, 7, None)
    saved = [kept for _, kept in first]
    second = in_process(_part, 3, config, 7, 20, saved)
    for rank in range(3):
        np.testing.assert_array_equal([*first[rank][0], *second[rank][0]], whole[rank])
    return saved


def _part(world: World, config: dict[str, Any], begin: int, end: int, saved: list[Any] | None) -> Any:
    """Train a part of a run, from what was saved if there is any; what happened, what was saved."""
    task = CASES["toy"]
    model, optimizer = trainable("toy", "plain")
    engine = world.attach(model, optimizer, config)
    if saved is not None:
        model.load_state_dict(saved[world.rank][0])
        engine.load_state_dict(saved[world.rank][1])
    history = []
    for step in range(begin, end):
        world.group.sleep((1.0, 1.0, 3.0)[world.rank])
        take_step(task.local_loss(model, step, world.rank), optimizer)
        history.append(values(model))
        if step == 6:  # a checkpoint, whether or not the run is stopped here
            state = engine.state_dict()
            np.testing.assert_array_equal(values(model), history[-1])  # saving does not touch the model
            world.group.sleep(100.0 - world.group.time())
            kept = {name: value.clone() for name, value in model.state_dict().items()}, state
    if end == 7:
        engine.close(average=False)
        return history, kept
    engine.close()
    return [*history, values(model)], None

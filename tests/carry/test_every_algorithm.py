"""Every bundled algorithm goes on with more workers, and with fewer, and nothing that it holds is lost."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import torch

from relaxcomm import checkpoint
from relaxcomm.checks.trial_problem import Rank, Trial
from relaxcomm.config import registry
from relaxcomm.topology import complete, hierarchical, ring
from tests.checkpoint.test_saving import NEEDED

T = TypeVar("T")
GRAPHS = {
    "hierarchical_local_sgd": lambda size: hierarchical(sizes=(2, 1) if size == 3 else size // 2),
    **dict.fromkeys(("choco_sgd", "d_psgd", "dcd_psgd", "sgp"), lambda size: ring()),
}
BUSY = {  # else nothing would be exchanged in so few steps
    **{name: {"steps": 2} for name in ("diloco", "local_sgd", "slowmo", "sparseloco")},
    **{name: {"steps": 2} for name in ("des_loc", "easgd", "heloco", "noloco")},
    "qadam": {"warmup_steps": 2},
    "streaming_diloco": {"steps": 4, "delay": 1},
    "decoupled_diloco": {"steps": 2, "grace_seconds": 0.5},
}
MOVED = pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 2)])


@pytest.fixture(autouse=True)
def _in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def run(name, program, size):
    """What a program returns on each rank of an algorithm that begins at once with all that it does."""
    trial = Trial.__new__(Trial)
    settings = {
        "algorithm": registry.algorithms()[name](**NEEDED.get(name, BUSY.get(name, {}))),
        "bucket_bytes": 400,
    }
    settings["topology"] = GRAPHS.get(name, lambda size: complete())(size)
    adam = name in ("des_loc", "local_sgd", "diloco")
    make = torch.optim.AdamW if adam else torch.optim.SGD
    trial.settings, trial.make_optimizer = settings, lambda parameters: make(parameters, lr=0.01)
    return trial.run(program, size)


def steps(rank: Rank) -> Iterator[None]:
    """The steps of an epoch, with a pause that differs between ranks."""
    for batch in rank.loader:
        rank.group.sleep(1.0 + 0.3 * rank.group.rank())
        for (x, y), share in rank.engine.micro_batches(batch, 4):
            (share * (rank.model(x) - y).square().mean()).backward()
        rank.optimizer.step()
        rank.optimizer.zero_grad()
        rank.schedule.step()
        yield


def stop_in_the_second_epoch(rank: Rank, stop: Callable[[], T]) -> T:
    """Train until then, and stop there: in the middle, ranks without a common step in different places."""
    algorithm = rank.engine._session.bound.algorithm
    for epoch in range(2):
        for step, _ in enumerate(steps(rank)):
            middle = 1 if algorithm.keeps_step else rank.group.rank() % 2
            if (epoch, step) == (1, middle) and algorithm.round_plan is None:
                return stop()
    return stop()


def masses(states) -> dict[str, torch.Tensor]:
    """What is still to be sent, as the mean over the ranks; of what codes means, as a whole."""
    found: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(()))
    size = len(states)
    for state in states:
        for rule, unit, roles in state["engine"]["slots"]:
            slots = roles.get("compressor", {})
            parts: dict[str, list[torch.Tensor]] = defaultdict(list)
            for slot, value in slots.items():
                *where, name = slot.split(".")
                if name in ("residual", "velocity", "estimate"):
                    last = bool(where) and where[0] == str(size)
                    parts[f"{rule} {unit} {name} {last}"].append(value)
            for key, values in parts.items():
                if key.endswith("True"):
                    found[key] = torch.cat([*([found[key]] if found[key].dim() else []), *values])
                else:
                    found[key] = found[key] + torch.cat(values) / size
    return dict(found)


@pytest.mark.every_other("name", "before", of=4)
@MOVED
@pytest.mark.parametrize("name", sorted(registry.algorithms()))
def test_it_goes_on(name, before, after, tmp_path):
    epochs = 3 if name == "fedavg" else 2  # that one stops between two rounds

    def save(rank):
        checkpoint.save(rank.engine, tmp_path, schedule=rank.schedule)
        state = copy.deepcopy(rank.engine.run_state_dict(schedule=rank.schedule))
        rank.engine.close()
        return state, rank.parameters

    def load(rank):
        assert checkpoint.load(rank.engine, tmp_path, schedule=rank.schedule) is not None
        begun = rank.parameters
        state = copy.deepcopy(rank.engine.run_state_dict(schedule=rank.schedule))
        rank.engine.close()
        return state, rank.parameters, begun

    def go_on(rank):
        checkpoint.load(rank.engine, tmp_path, schedule=rank.schedule)
        for _ in range(rank.loader.epoch, epochs):
            for _ in steps(rank):
                pass
        differ = rank.engine._session.bound.algorithm.lets_replicas_differ
        return rank.parameters, differ, rank.engine.statistics["samples"]

    old = run(name, lambda rank: stop_in_the_second_epoch(rank, lambda: save(rank)), before)
    states, ended = zip(*old, strict=True)
    carried, found, begun = zip(*run(name, load, after), strict=True)
    for one in found:  # stopped at once, it ends with the model of those who saved it
        torch.testing.assert_close(one, ended[0], rtol=0, atol=1e-12)
    assert all(torch.equal(one, begun[0]) for one in begun)
    mass, mass_after = masses(states), masses(carried)
    assert mass.keys() == mass_after.keys()
    for key, value in mass.items():
        torch.testing.assert_close(mass_after[key], value, rtol=0, atol=1e-12, msg=key)
    stopped = any(state["engine"]["loaders"][0]["place"][0] for state in states)
    farthest = max(state["engine"]["step"] for state in states)
    assert {state["engine"]["step"] for state in carried} == {farthest}
    replicas, differ, samples = zip(*run(name, go_on, after), strict=True)
    assert all(one.isfinite().all() for one in replicas)
    assert all(differ) or all(torch.equal(one, replicas[0]) for one in replicas)
    # Few sit out and none comes twice.
    assert epochs * 96 - 2 * after <= sum(samples) <= epochs * 96 + after * stopped

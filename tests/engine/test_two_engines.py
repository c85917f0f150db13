"""Two engines in one process: a generator and a discriminator, each with an optimizer and an algorithm."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import relaxcomm
from relaxcomm import ConfigError, UsageError
from relaxcomm.engine.attaching.consistency import compare, elastic_facts
from tests.engine.by_hand import ALGORITHMS, Hand, NoEngine, values
from tests.engine.harness import World, in_process, on_gloo
from tests.faults.small_script import MEET, kept_store
from tests.models import CASES, Case, regression
from tests.ranks import launch_script, run_ranks

STEPS, SIZE = 7, 3
GENERATOR = Case(
    lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)).double(),
    regression(3, 1, torch.float64),
    nn.functional.binary_cross_entropy_with_logits,
)
DISCRIMINATOR = Case(
    lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1)).double(),
    GENERATOR.batch,
    GENERATOR.loss,
)
WAYS = ("toggled", "under no_sync", "as it stands")
"""How the generator's loss goes through the discriminator."""


def loss(logits, real):
    return GENERATOR.loss(logits, torch.full_like(logits, float(real)))


class Gan:
    """Both models with their optimizers, on one rank."""

    def __init__(self, rank, way, seed):
        self.rank, self.way = rank, way
        self.models = GENERATOR.model(seed), DISCRIMINATOR.model(seed + 5)
        self.optimizers = (
            torch.optim.Adam(self.models[0].parameters(), lr=0.01, eps=1e-3),
            torch.optim.SGD(self.models[1].parameters(), lr=0.05, momentum=0.9),
        )

    def steps(self, step, engine):
        """One step of each; yields which of the two is about to step, and that it has."""
        generator, discriminator = self.models
        noise = GENERATOR.data(step, self.rank)[0]
        self.optimizers[1].zero_grad()
        real = CASES["toy"].data(step, self.rank)[0]
        (loss(discriminator(real), 1) + loss(discriminator(generator(noise).detach()), 0)).backward()
        yield 1, "gradients"
        self.optimizers[1].step()
        yield 1, "stepped"
        self.optimizers[0].zero_grad()
        discriminator.requires_grad_(self.way != "toggled")
        with engine.no_sync() if self.way == "under no_sync" else nullcontext():
            loss(discriminator(generator(noise)), 1).backward()
        discriminator.requires_grad_(True)
        yield 0, "gradients"
        self.optimizers[0].step()
        yield 0, "stepped"

    @property
    def values(self):
        return np.concatenate([values(model) for model in self.models])


def train(world: World, algorithms, way, order=(0, 1), **more):
    """After each step and when both engines are closed; steps and bytes of each engine."""
    gan, history = Gan(world.rank, way, seed=world.rank), []
    engines = [
        world.attach(model, optimizer, {"algorithm": ALGORITHMS.get(name, name), "bucket_bytes": 256, **more})
        for model, optimizer, name in zip(gan.models, gan.optimizers, algorithms, strict=True)
    ]
    for step in range(STEPS):
        for _ in gan.steps(step, engines[1]):
            pass
        history.append(gan.values)
    counted = [(one.statistics["steps"], one.statistics["bytes_sent"]) for one in engines]
    for index in order:
        engines[index].close()
    return [*history, gan.values], counted


def expected(algorithms, way):
    gans = [Gan(rank, way, seed=0) for rank in range(SIZE)]
    hands = [Hand(name, [gan.models[i] for gan in gans]) for i, name in enumerate(algorithms)]
    histories = [[] for _ in gans]
    for step in range(STEPS):
        for reached in zip(*(gan.steps(step, NoEngine()) for gan in gans), strict=True):
            which, what = reached[0]
            if what == "gradients":
                hands[which].gradients()
            else:
                hands[which].parameters(step)
        for history, gan in zip(histories, gans, strict=True):
            history.append(gan.values)
    return histories


PAIRS = [
    ("bsp", "local_sgd"),
    ("local_sgd", "bsp"),
    ("bsp", "topk_sgd"),
    ("topk_sgd", "delayed_sgd"),
    ("late", "bsp"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("algorithms", PAIRS, ids="-".join)
def test_each_model_trains_as_by_hand(algorithms, way):
    if way == "as it stands" and algorithms[1] in ("topk_sgd", "delayed_sgd"):
        words = "a second synchronising backward in step 1.*discriminator.*no_sync.*requires_grad_"
        with pytest.raises(UsageError, match=words):
            in_process(train, SIZE, algorithms, way)
        return
    wanted = expected(algorithms, way)
    for rank, (history, counted) in enumerate(in_process(train, SIZE, algorithms, way)):
        assert [steps for steps, _ in counted] == [STEPS, STEPS]
        np.testing.assert_allclose(history[:-1], wanted[rank], rtol=1e-9, atol=1e-9)


def test_what_is_not_for_the_discriminator_need_not_be_sent():
    """With bsp the generator's loss may go through it, but its gradients there are exchanged for nothing."""
    sent = {way: in_process(train, SIZE, ("bsp", "bsp"), way)[1][1][1][1] for way in WAYS}
    assert sent["toggled"] == sent["under no_sync"] < sent["as it stands"]


@pytest.mark.ranks
def test_they_are_closed_in_any_order():
    first, second = (
        on_gloo(train, SIZE, ("late", "topk_sgd"), "toggled", order) for order in ((0, 1), (1, 0))
    )
    for (history, _), (same, _) in zip(first, second, strict=True):
        np.testing.assert_array_equal(history, same)
        np.testing.assert_array_equal(history[-1], first[0][0][-1])


def test_each_has_a_name_and_a_run_log_of_its_own(tmp_path):
    """Of the same algorithm, in the same second; a name that is free again is used again."""
    more = {"output": str(tmp_path), "metrics": {"run": "gan", "port": None}}
    in_process(lambda world: train(world, ("bsp", "bsp"), "toggled", (1, 0), **more), SIZE)
    logs = {path.name: path.read_text().splitlines() for path in tmp_path.glob("*.jsonl")}
    assert set(logs) == {f"{run}.rank{rank}.jsonl" for run in ("gan", "gan-2") for rank in range(SIZE)}
    for name, lines in logs.items():
        assert json.loads(lines[0])["run"] == name.partition(".")[0]
        assert [json.loads(line)["step"] for line in lines[1:-1]] == list(range(1, STEPS + 1))
    relaxcomm.attach(GENERATOR.model(), None, {"algorithm": "bsp", **more}).close()
    assert len((tmp_path / "gan.rank0.jsonl").read_text().splitlines()) > len(logs["gan.rank0.jsonl"])
    assert len(list(tmp_path.glob("*.jsonl"))) == len(logs)


def test_a_worker_joins_no_run_of_several_engines():
    """It would wait to be admitted by one while the others wait for it in the other."""
    alone = elastic_facts({})
    with relaxcomm.attach(GENERATOR.model(), None, "bsp"):
        second = elastic_facts({})
    with pytest.raises(
        ConfigError, match=r"the engines attached before this one: rank 0 has \d+, rank 1 has"
    ):
        compare([second, alone])


LOSING = (
    MEET
    + """
torch.manual_seed(0)
sizes = (3, 20), (20, 1)
models = [
    torch.nn.Sequential(torch.nn.Linear(inputs, 30), torch.nn.Tanh(), torch.nn.Linear(30, outputs))
    for inputs, outputs in sizes
]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
config = {"membership": {"elastic": True}, "bucket_bytes": 2000, "timeout_seconds": 30}
engines = [
    relaxcomm.attach(model, optimizer, {**config, "algorithm": algorithm})
    for model, optimizer, algorithm in zip(models, optimizers, ({"name": "local_sgd", "steps": 4}, "bsp"))
]
torch.manual_seed(1 + rank)

def reached(where):
    if rank == 1 and step == 14 and WHERE == where:
        end()

for step in range(40):
    reached("begin")
    models[1](models[0](torch.randn(8, 3)).detach()).square().mean().backward()
    reached("backward")
    optimizers[1].step()
    optimizers[1].zero_grad()
    reached("between")
    models[1].requires_grad_(False)
    models[1](models[0](torch.randn(8, 3))).mean().backward()
    models[1].requires_grad_(True)
    optimizers[0].step()
    optimizers[0].zero_grad()
found = [[engine.statistics["steps"], engine.world.size] for engine in engines]
for engine in engines:
    engine.close()
flat = torch.cat([p.detach().flatten() for model in models for p in model.parameters()])
print(json.dumps([found, flat.double().sum().item()]))
"""
)


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("where", ["begin", "backward", "between"])
def test_both_go_on_where_a_rank_is_lost(where):
    store = kept_store()
    done = launch_script(LOSING, 4, 100, arguments=[json.dumps({"PORT": store.port, "WHERE": where})])
    del store
    left = [json.loads(one.stdout) for rank, one in enumerate(done) if rank != 1]
    assert [found for found, _ in left] == [[[40, 3], [40, 3]]] * 3, done[0].stderr
    assert len({total for _, total in left}) == 1


def after_one_alone(rank):
    """The sum of a model's weights that all train, after rank 0 has trained another one alone.

    The launcher of rank 1's host has started its workers again once, the others' have not.
    """
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(int(rank == 1))
    alone = dist.new_group([0])
    if rank == 2:
        with pytest.raises(ConfigError, match="rank 2 is not in this process_group, which has the ranks 0;"):
            relaxcomm.attach(nn.Linear(1, 1), None, "bsp", process_group=alone)
    found = 0.0
    for group in [alone, None] if rank == 0 else [None]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"algorithm": "bsp", "bucket_bytes": 48, "timeout_seconds": 30}
        with relaxcomm.attach(model, optimizer, config, process_group=group):
            for step in range(3):
                optimizer.zero_grad()
                model(torch.full((2, 3), float(rank + step))).square().mean().backward()
                optimizer.step()
        found = sum(one.sum().item() for one in model.parameters())
    del os.environ["TORCHELASTIC_RESTART_COUNT"]
    return found


@pytest.mark.ranks
def test_some_ranks_have_trained_another_model_before_without_the_others():
    assert len(set(run_ranks(after_one_alone, 3))) == 1

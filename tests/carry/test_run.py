"""What a run of another number of ranks goes on from: what stays, and what is refused by name."""

from __future__ import annotations

import copy
import random
import re
from contextlib import nullcontext
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch

from relaxcomm import Algorithm, ConfigError, Rule, simulate
from relaxcomm.carry.means import same, shares
from relaxcomm.carry.random_numbers import carried_random
from relaxcomm.carry.slots import Carrier, grown
from relaxcomm.data import Progress
from relaxcomm.engine import attach
from relaxcomm.network.transport import Membership
from relaxcomm.plugin import frozen
from relaxcomm.primitives import all_reduce, deltas, every, parameters
from relaxcomm.topology import from_networkx

DIM = 6


class Run:
    """A small model that all ranks train on tensors of their own."""

    def __init__(self, group, algorithm, topology=None, dtype=torch.float64, model=None):
        torch.manual_seed(group.rank())
        self.group, self.rank = group, group.rank()
        self.model = model or torch.nn.Linear(DIM, 1, bias=False, dtype=dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        settings = {"algorithm": algorithm, **({"topology": topology} if topology else {})}
        self.engine = attach(self.model, self.optimizer, settings, process_group=group)

    def train(self, steps):
        for step in range(steps):
            self.group.sleep(1.0)
            x = torch.randn(4, DIM, generator=torch.Generator().manual_seed(10 * step + self.rank))
            self.model(x.to(next(self.model.parameters()).dtype)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def export(self, **others):
        return copy.deepcopy(self.engine.run_state_dict(**others))

    def load(self, states, **others):
        self.engine.load_run_state_dict(self.engine.carry_run_state_dicts(states, **others), **others)
        return self


def saved(size, algorithm, steps=3, **settings):
    def program(group):
        run = Run(group, algorithm, **settings).train(steps)
        with run.engine:
            return run.export()

    return simulate(program, size)


def loaded(size, states, algorithm, **settings):
    def program(group):
        run = Run(group, algorithm, **settings)
        with run.engine:
            return run.load(states).export()

    return simulate(program, size)


def test_a_push_sum_keeps_what_is_handed_out():
    """On a graph that is not balanced weights differ, so the mean of all models is not what is kept."""
    graph = from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
    states = saved(3, "sgp", topology=graph)
    slots = [state["engine"]["slots"][0][2]["compressor"] for state in states]
    assert len({float(one["weight"]) for one in slots}) > 1
    expected = sum(one["sum"] for one in slots) / 3
    for state in loaded(2, states, "sgp"):
        torch.testing.assert_close(state["model"]["weight"].flatten(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 2), (1, 2), (3, 1)])
def test_moments_are_the_mean_and_clocks_stay(before, after):
    states = saved(before, {"name": "diloco", "steps": 2})
    expected = sum(state["optimizers"][0]["state"][0]["exp_avg"] for state in states) / before
    for rank, state in enumerate(loaded(after, states, {"name": "diloco", "steps": 2})):
        moments = state["optimizers"][0]["state"][0]
        torch.testing.assert_close(moments["exp_avg"], expected, rtol=0, atol=1e-12)
        assert moments["step"] == 3
        engine = state["engine"]
        assert (engine["rank"], engine["step"], engine["statistics"]["steps"]) == (rank, 3, 3)
        for slot in ("payload", "outer"):
            assert same(engine["slots"][0][2][slot], states[0]["engine"]["slots"][0][2][slot])


class Tempered(torch.nn.Linear):
    def __init__(self):
        super().__init__(DIM, 1, bias=False)
        self.temperature = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return super().forward(x) * self.temperature


def test_a_count_is_that_of_the_worker_that_has_stepped_the_parameter_most():
    """Another may not have used it in some step, as after a switch."""
    states = saved(3, "local_sgd")
    states[1]["optimizers"][0]["state"][0]["step"] += 2
    assert [one["optimizers"][0]["state"][0]["step"] for one in loaded(2, states, "local_sgd")] == [5, 5]


@pytest.mark.parametrize("on", [0, 1])
def test_a_moment_that_a_worker_has_not_begun_is_the_mean_of_the_others(on):
    states = saved(3, "local_sgd")
    moments = [state["optimizers"][0]["state"][0] for state in states]
    expected = sum(one["exp_avg"] for rank, one in enumerate(moments) if rank != on) / 2
    moments[on]["exp_avg"] = None
    for state in loaded(2, states, "local_sgd"):
        torch.testing.assert_close(state["optimizers"][0]["state"][0]["exp_avg"], expected)


def test_moments_of_a_parameter_without_dimensions_are_the_mean_too():
    states = simulate(lambda group: Run(group, "local_sgd", model=Tempered()).train(3).export(), 3)
    theirs = [state["optimizers"][0]["state"] for state in states]
    assert len({float(one[1]["exp_avg"]) for one in theirs}) > 1
    for state in simulate(lambda group: Run(group, "local_sgd", model=Tempered()).load(states).export(), 2):
        for place, moments in state["optimizers"][0]["state"].items():
            assert moments["step"] == 3
            expected = sum(one[place]["exp_avg"] for one in theirs) / 3
            torch.testing.assert_close(moments["exp_avg"], expected)


@pytest.mark.parametrize(("on", "not_begun"), [([1], None), ([1], 2), ([0, 1, 2], None)])
def test_a_moment_that_is_infinite_on_some_ranks_has_no_mean(on, not_begun):
    """As where a square overflows in half precision; what all have never seen may be infinite on all."""
    states = saved(3, "local_sgd")
    if not_begun is not None:
        states[not_begun]["optimizers"][0]["state"][0]["exp_avg_sq"] = None
    for rank in on:
        states[rank]["optimizers"][0]["state"][0]["exp_avg_sq"][0, 2] = torch.inf
    text = f"exp_avg_sq of weight is not finite on 1 of the {2 if not_begun else 3} workers that hold it"
    with nullcontext() if len(on) == 3 else pytest.raises(ConfigError, match=text):
        for state in loaded(2, states, "local_sgd"):
            assert state["optimizers"][0]["state"][0]["exp_avg_sq"].isinf().sum() == 1


def test_for_the_same_number_nothing_changes():
    """But for the statistics, of which only the sums are kept."""
    states = saved(3, "ef_signsgd")
    for before, after in zip(states, loaded(3, states, "ef_signsgd"), strict=True):
        assert same({**after["engine"], "statistics": 0}, {**before["engine"], "statistics": 0})
        assert same(after["model"], before["model"])


@pytest.mark.parametrize("name", ["bsp", "delayed_sgd", "streaming_diloco"])
def test_the_states_are_not_changed_by_training(name):
    """Ranks of one process are given the same ones, and what they train on is each one's own."""
    algorithm = {"name": name, **({"steps": 4, "delay": 2, "fragments": 1} if "diloco" in name else {})}
    states = saved(3, algorithm, steps=5)
    assert any(states[0]["engine"][late] for late in ("late_gradients", "late_parameters")) or name == "bsp"
    before = copy.deepcopy(states)

    def new(group):
        run = Run(group, algorithm)
        with run.engine:
            run.load(states).train(4)

    simulate(new, 2)
    assert same(states, before)


def test_what_is_late_keeps_its_round_and_samples():
    """Samples of 2 and 3 are 2 on average, in whole numbers."""
    rule = Rule(trigger=every(steps=2), payload=deltas(), exchange=all_reduce(), delay=1)
    algorithm = Algorithm((rule,))
    states = saved(2, algorithm, steps=4)
    for rank, state in enumerate(states):
        (late,) = state["engine"]["late_parameters"]
        assert late[6:] == [1, 2]
        late[6:] = [1, 2 + rank]
    for state in loaded(3, states, algorithm):
        (late,) = state["engine"]["late_parameters"]
        assert late[6:] == [1, 2]


@frozen
class pulled(parameters):
    """Half of the way to where all were when they sent."""

    facts = replace(parameters.facts, keeps_local=True)

    def write(self, cx, bucket, state, value, snapshot):
        bucket.scatter(torch.lerp(bucket.copy(), value, 0.5))


def test_half_of_the_way_to_a_late_mean_is_gone_all_the_same():
    rule = Rule(trigger=every(steps=2), payload=pulled(), exchange=all_reduce(), delay=2)

    def ended(run):
        state = run.export()
        run.engine.close()
        return state, run.model.weight.detach()

    ran = simulate(lambda group: ended(Run(group, Algorithm((rule,))).train(3)), 3)
    states = [state for state, _ in ran]
    for _, weight in simulate(lambda group: ended(Run(group, Algorithm((rule,))).load(states)), 2):
        assert torch.allclose(weight, ran[0][1])


def test_buffers_and_tied_weights_are_carried():
    def model():
        body = torch.nn.Sequential(
            torch.nn.Linear(DIM, DIM), torch.nn.BatchNorm1d(DIM), torch.nn.Linear(DIM, DIM)
        )
        body[2].weight = body[0].weight
        return body

    states = simulate(lambda group: Run(group, "local_sgd", model=model()).train(2).export(), 4)
    for state in simulate(lambda group: Run(group, "local_sgd", model=model()).load(states).export(), 2):
        for name in ("0.weight", "1.running_mean"):
            expected = sum(one["model"][name] for one in states) / 4
            torch.testing.assert_close(state["model"][name], expected)
        assert torch.equal(state["model"]["0.weight"], state["model"]["2.weight"])


class Own:
    """A state that differs between ranks."""

    def __init__(self, rank):
        self.rank = rank

    def state_dict(self):
        return {"rank": self.rank}

    def load_state_dict(self, state_dict):
        raise AssertionError("nothing may be loaded")


class Known(Own):
    """One that says what becomes of it."""

    def carry_state_dicts(self, state_dicts):
        return {"rank": [one["rank"] for one in state_dicts]}

    def load_state_dict(self, state_dict):
        self.rank = state_dict["rank"]


def test_what_says_what_becomes_of_it_is_asked():
    def old(group):
        run = Run(group, "bsp").train(1)
        with run.engine:
            return run.export(mine=Known(group.rank()))

    states = simulate(old, 3)

    def new(group):
        run, mine = Run(group, "bsp"), Known(None)
        with run.engine:
            run.load(states, mine=mine)
        return mine.rank

    assert simulate(new, 2) == [[0, 1, 2]] * 2


def test_of_an_averaged_model_the_mean_is_taken():
    """It differs where replicas do, and in BatchNorm's statistics where these are equal."""

    def program(group, states=()):
        torch.manual_seed(group.rank())
        model = torch.nn.Sequential(torch.nn.Linear(DIM, 2), torch.nn.BatchNorm1d(2)).double()
        run = Run(group, "local_sgd", model=model)
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        with run.engine:
            if states:
                run.load(states, average=average)
            else:
                run.train(2)
                average.update_parameters(model)
            return run.export(average=average)

    states = simulate(program, 3)
    kept = [state["others"]["average"] for state in states]
    assert not torch.equal(kept[0]["module.1.running_mean"], kept[1]["module.1.running_mean"])
    for state in simulate(lambda group: program(group, states), 2):
        for name, value in state["others"]["average"].items():
            torch.testing.assert_close(value, sum(one[name] for one in kept) / 3, check_dtype=False)


def test_a_metric_that_adds_up_has_no_mean():
    torchmetrics = pytest.importorskip("torchmetrics")

    def program(group, use, is_kept=True):
        metric = torchmetrics.SumMetric()
        metric.network = torch.nn.Linear(1, 1)  # as FID has one
        run, seen = Run(group, "bsp"), torchmetrics.MetricCollection([metric])
        seen.persistent(is_kept)
        with run.engine:
            return use(run, seen=seen)

    states = simulate(lambda group: program(group, Run.export, False), 3)
    simulate(lambda group: program(group, lambda run, seen: run.load(states, seen=seen), False), 2)
    states = simulate(lambda group: program(group, Run.export), 3)
    with pytest.raises(ConfigError, match="'seen' holds sums over what each worker has seen"):
        simulate(lambda group: program(group, lambda run, seen: run.load(states, seen=seen)), 2)


class Queue(torch.nn.Module):
    """As long as its rank has made it."""

    def __init__(self, rank):
        super().__init__()
        self.register_buffer("entries", torch.zeros(rank + 1))


@pytest.mark.parametrize("Own", [Own, Queue])
def test_what_nobody_knows_is_refused_by_name(Own):
    def old(group):
        run = Run(group, "bsp").train(1)
        with run.engine:
            return run.export(mine=Own(group.rank()))

    states = simulate(old, 3)

    def new(group):
        run = Run(group, "bsp")
        with run.engine, pytest.raises(ConfigError) as caught:
            run.engine.carry_run_state_dicts(states, mine=Own(group.rank()))
        return str(caught.value)

    assert all("state of 'mine' differs between the 3 workers" in found for found in simulate(new, 2))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            lambda states: states[1]["engine"]["slots"][0][2]["outer"]["momentum"].add_(1),
            "'momentum' of nest",
        ),
        (lambda states: states.reverse(), "has rank 2, this run has 0"),
        (lambda states: states.pop(), "has world_size 3, this run has 2"),
        (lambda states: states[1]["engine"].update(step=7), "load the states that were saved together"),
        (lambda states: states[1]["engine"]["loaders"].clear(), "ranks have read different data"),
    ],
)
def test_states_that_do_not_belong_together_are_refused(spoil, text):
    algorithm = {"name": "diloco", "steps": 2}
    states = saved(3, algorithm)
    for state in states:
        state["engine"]["loaders"] = [{"kind": ["data", 9], "anew": False, **Progress().export()}]
    spoil(states)

    def new(group):
        run = Run(group, algorithm)
        with run.engine, pytest.raises(ConfigError) as caught:
            run.engine.carry_run_state_dicts(states)
        return str(caught.value)

    for found in simulate(new, 2):
        assert re.search(text, found), found


def test_a_share_of_whole_numbers_is_rounded_once_and_kept_within_its_type():
    value = torch.tensor([2**24 + 3, 2**31 - 1, -(2**31)], dtype=torch.int32)
    assert grown(value, "share", before=2, now=3).tolist() == [25165828, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("after", range(1, 6))
def test_a_sum_of_whole_numbers_stays_of_its_type_and_as_large(after):
    held = [torch.tensor([5, -7]), torch.tensor([8, 2]), torch.tensor([0, 2**40 + 1])]
    made = [Carrier(3, Membership(rank, after)).one("", "", "sum", held) for rank in range(after)]
    assert torch.stack(made).dtype == torch.int64
    assert torch.equal(torch.stack(made).sum(0), torch.stack(held).sum(0))


@pytest.mark.parametrize("before", range(1, 6))
@pytest.mark.parametrize("after", range(1, 6))
def test_shares_keep_every_mean(before, after):
    weights = np.array([shares(before, Membership(rank, after)) for rank in range(after)])
    np.testing.assert_allclose(weights.sum(1), 1)
    np.testing.assert_allclose(weights.mean(0), 1 / before)
    assert before != after or np.array_equal(weights, np.eye(before))


def test_generators_go_on_where_all_are_equal_and_differ_where_they_did():
    def state(seed):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        kind, key, *rest = np.random.get_state(legacy=True)
        numpy_state = (kind, np.asarray(key).tolist(), *rest)
        gpu = torch.tensor([seed, 5]).view(torch.uint8)
        return {
            "python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state(), "cuda": gpu
        }  # fmt: skip

    kept = torch.random.get_rng_state()
    new = [Membership(rank, 3) for rank in range(3)]
    assert all(same(carried_random([state(7)] * 2, one), state(7)) for one in new)
    drawn = set()
    for one in new:
        made = carried_random([state(7), state(8)], one)
        random.setstate(made["python"])
        np.random.set_state(made["numpy"])
        torch.set_rng_state(made["torch"])
        drawn |= {random.random(), float(np.random.random()), float(torch.rand(())), *made["cuda"].tolist()}
        assert made["cuda"][8:].any() == 0
    assert len(drawn) >= 3 * 3
    torch.random.set_rng_state(kept)


class Codes(torch.optim.SGD):
    """Keeps codes with their scale, and something of no parameter."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            scale = p.grad.abs().max()[None]
            self.state[p] = {"scale": scale, "codes": (p.grad / scale * 127).to(torch.int8)}
        self.state["total"] = 5
        return super().step(closure)

    def load_state_dict(self, state_dict):
        self.loaded = state_dict["state"]
        super().load_state_dict(state_dict)


def test_codes_and_their_scale_stay_together():
    def program(group, states=()):
        model = torch.nn.Linear(DIM, 1, bias=False)
        optimizer = Codes(model.parameters(), lr=0.05)
        with attach(model, optimizer, {"algorithm": "local_sgd"}, process_group=group) as engine:
            if states:
                engine.load_run_state_dict(engine.carry_run_state_dicts(states))
                return optimizer.loaded
            model(torch.randn(4, DIM, generator=torch.Generator().manual_seed(group.rank()))).sum().backward()
            optimizer.step()
            return copy.deepcopy(engine.run_state_dict())

    states = simulate(program, 3)
    kept = states[0]["optimizers"][0]["state"]
    for loaded in simulate(lambda group: program(group, states), 2):
        assert same(loaded, kept)

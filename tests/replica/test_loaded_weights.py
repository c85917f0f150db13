"""Weights that a training loop loads after attach: refused where a base would make them local progress."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace

import networkx as nx
import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import Algorithm, CompositionWarning, Rule, UsageError
from relaxcomm.plugin import Trigger, frozen
from relaxcomm.primitives import all_reduce, deltas, every_step, parameters, push_sum
from relaxcomm.replica.loaded_weights import LoadedWeights
from tests.models import take_step

ROUND = {"steps": 3}
BASED = [
    {"name": "diloco", **ROUND},
    {"name": "slowmo", **ROUND},
    {"name": "streaming_diloco", "steps": 6, "delay": 1},
    {"name": "sparseloco", **ROUND},
    {"name": "decoupled_diloco"},
    {"name": "noloco"},
    {"name": "heloco"},
    {"name": "easgd"},
    {"name": "ssp"},
    {"name": "sgp"},
]
DILOCO = BASED[0]


def make(kind=torch.optim.SGD):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, kind(model.parameters(), lr=1e-3)


TOLD = pytest.mark.filterwarnings("ignore:.* has changed .* cannot tell whether it was put back")
GIVEN = make()  # to be copied


def train(model, optimizer, steps=1):
    for step in range(steps):
        take_step(model(torch.ones(5, 3) + step).square().mean(), optimizer)


def other(model):
    """Weights that are not the model's."""
    return {name: value + 1 for name, value in model.state_dict().items()}


def kept(model):
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("algorithm", BASED, ids=lambda one: one["name"])
@pytest.mark.parametrize("at", [0, 4])
def test_a_load_that_a_base_would_take_for_progress_is_refused(algorithm, at):
    model, optimizer = make()
    with pytest.raises(UsageError, match=rf"load_state_dict\(\) has changed .* before step {at}.*Close"):  # noqa: PT012, SIM117
        with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}):
            train(model, optimizer, at)
            model.load_state_dict(other(model))
            train(model, optimizer)


@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd", "d_psgd", "selsync"])
def test_a_load_without_a_base_is_what_training_goes_on_from(algorithm):
    def rank(group):
        torch.manual_seed(0)
        model, optimizer = make()
        with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}, process_group=group):
            train(model, optimizer, 3)
            model.load_state_dict(given)
            train(model, optimizer)
        return model[0].weight.mean().item()

    given = {name: torch.full_like(value, 5) for name, value in make()[0].state_dict().items()}
    assert relaxcomm.simulate(rank, 2) == pytest.approx([5.0, 5.0], abs=0.2)


@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd", "selsync"])
def test_only_an_algorithm_to_which_loads_matter_looks_at_parameters_in_each_step(algorithm, monkeypatch):
    """Which takes longer than all else in a step without an exchange; after a switch it may matter."""
    looked = []
    now = LoadedWeights._versions_now
    monkeypatch.setattr(LoadedWeights, "_versions_now", lambda self: looked.append(self) or now(self))
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        train(model, optimizer, 2)
        model.load_state_dict(other(model))
        train(model, optimizer, 2)
        assert not looked
        engine.switch(DILOCO)
        train(model, optimizer)
        engine.switch(algorithm)
        looked.clear()
        train(model, optimizer)
        assert not looked
        engine.switch(DILOCO)
        train(model, optimizer)
        model.load_state_dict(other(model))
        with pytest.raises(UsageError, match="before step 1"):
            train(model, optimizer)


def test_the_others_end_with_the_rank_that_has_loaded():
    def rank(group):
        model, optimizer = make()
        with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}, process_group=group):
            train(model, optimizer)
            if group.rank() == 1:
                model[0].load_state_dict(other(model[0]))  # a part of the model
            train(model, optimizer, 5)

    with pytest.raises(Exception, match=r"has changed 0\.bias and 1 more before step 1"):
        relaxcomm.simulate(rank, 3)


def evaluates(model, optimizer, engine):
    before = kept(model)
    model.load_state_dict(other(model))
    model(torch.ones(5, 3)).sum()  # without no_grad
    model.load_state_dict(before)


def tells_of_an_evaluation(model, optimizer, engine):
    before = kept(model)
    model.load_state_dict(other(model))
    engine.mark("validated", loss=0.5)  # no rule waits for it
    model.load_state_dict(before)


def loads_the_mean(model, optimizer, engine):
    with engine.averaged():
        mean = kept(model)
        model.load_state_dict(other(model))
        model.load_state_dict(mean)


def loads_in_averaged(model, optimizer, engine):
    with engine.averaged():
        model.load_state_dict(other(model))


def loads_the_same(model, optimizer, engine):
    model.load_state_dict(kept(model))


def loads_buffers(model, optimizer, engine):
    model[1].load_state_dict({"running_mean": torch.ones(4)}, strict=False)


def goes_back(model, optimizer, engine):
    saved = copy.deepcopy(engine.run_state_dict())
    train(model, optimizer)
    engine.load_run_state_dict(saved)


def loads_and_goes_back(model, optimizer, engine):
    saved = copy.deepcopy(engine.run_state_dict())
    model.load_state_dict(other(model))
    engine.load_run_state_dict(saved)


def goes_back_by_parts(model, optimizer, engine, order=1):
    parts = (model, optimizer, engine)[::order]
    states = copy.deepcopy([part.state_dict() for part in parts])
    train(model, optimizer)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)


def goes_back_by_parts_the_model_last(model, optimizer, engine):
    goes_back_by_parts(model, optimizer, engine, -1)


def switches(model, optimizer, engine):
    model.load_state_dict(other(model))
    engine.switch({"name": "diloco", "steps": 5})  # whose base begins there


@pytest.mark.parametrize(
    "what",
    [
        evaluates,
        tells_of_an_evaluation,
        loads_the_mean,
        loads_in_averaged,
        loads_the_same,
        loads_buffers,
        goes_back,
        loads_and_goes_back,
        goes_back_by_parts,
        goes_back_by_parts_the_model_last,
        switches,
    ],
)
@pytest.mark.parametrize("algorithm", [DILOCO, {"name": "ssp"}], ids=lambda one: one["name"])
def test_a_load_that_is_put_back_or_is_the_engines_own_trains_on(algorithm, what):
    def rank(group):
        model, optimizer = make()
        with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
            train(model, optimizer, 2)
            what(model, optimizer, engine)
            train(model, optimizer, 2)
            what(model, optimizer, engine)
            train(model, optimizer)
            model.load_state_dict(other(model))  # before close it is the loop's own affair
        return engine.closed

    assert relaxcomm.simulate(rank, 2) == [True, True]


LATE = [
    {"name": "streaming_diloco", "steps": 8, "delay": 3, "fragments": 2},
    {"name": "local_sgd", "steps": 2, "delay": 1},
    "async_model_average",
    "delayed_sgd",
]


@pytest.mark.parametrize("algorithm", LATE, ids=str)
def test_what_is_loaded_before_the_end_is_what_all_end_with(algorithm):
    """And not moved by what is late, which is of other weights."""

    def rank(group):
        torch.manual_seed(group.rank())
        model, optimizer = make()
        with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}, process_group=group):
            train(model, optimizer, 9)
            model.load_state_dict(given)
        return all(torch.equal(one, given[name]) for name, one in model.named_parameters())

    given = {name: torch.full_like(value, 5) for name, value in make()[0].state_dict().items()}
    assert relaxcomm.simulate(rank, 3) == [True] * 3


UNEQUAL = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])  # rank 0 sends to two, and hears of one


def closes(engine, model):
    engine.close()
    return kept(model)


def switches_to_bsp(engine, model):
    engine.switch("bsp")
    return kept(model)


def holds_the_mean(engine, model):
    with engine.averaged():
        return kept(model)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("ends", [closes, switches_to_bsp, holds_the_mean])
def test_what_a_push_sum_holds_of_the_mean_is_none_of_loaded_weights(ends, delay):
    def rank(group):
        model, optimizer = copy.deepcopy(GIVEN)
        optimizer.param_groups[0]["lr"] *= 100 * (1 + group.rank())
        exchange = push_sum(topology=relaxcomm.from_networkx(UNEQUAL))
        rule = relaxcomm.Rule(payload=parameters(), exchange=exchange, delay=delay)
        settings = {"algorithm": relaxcomm.Algorithm((rule,), name="pushing"), "bucket_bytes": 70}
        with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
            train(model, optimizer, 5)
            model.load_state_dict(given)
            found = ends(engine, model)
            return [torch.equal(found[name], given[name]) for name, _ in model.named_parameters()]

    given = {name: torch.full_like(value, 5) for name, value in GIVEN[0].state_dict().items()}
    assert relaxcomm.simulate(rank, 3) == [[True] * 6] * 3


def late_averages(group, evaluates):
    """Of ranks that have parted, where rank 0 may evaluate other weights while one is on its way."""
    model, optimizer = copy.deepcopy(GIVEN)
    optimizer.param_groups[0]["lr"] *= 1 + group.rank()
    settings = {"algorithm": {"name": "local_sgd", "steps": 4, "delay": 2}, "bucket_bytes": 70}
    with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
        train(model, optimizer, 4)
        before = kept(model)
        if evaluates and group.rank() == 0:
            model.load_state_dict(other(model))
        engine.mark("validated", loss=0.5)
        model.load_state_dict(before)
        train(model, optimizer, 2)
        engine.close(average=False)
    return kept(model)


def test_a_mark_that_no_rule_waits_for_leaves_what_is_late_to_a_rank_that_evaluates():
    without = relaxcomm.simulate(lambda group: late_averages(group, False), 3)
    with_one = relaxcomm.simulate(lambda group: late_averages(group, True), 3)
    torch.testing.assert_close(with_one, without, rtol=0, atol=0)


@frozen
class at_noon(Trigger):
    facts = replace(every_step.facts, known="event", event="noon")

    def fires(self, cx):
        return cx.event == "noon"


@frozen
class moves_until_noon(deltas):
    facts = replace(deltas().facts, event="noon")


def loaded_after_a_mark(group):
    """An exchange that the training loop tells of, then other weights, and then the next one."""
    model, optimizer = make()
    rule = Rule(trigger=at_noon(), payload=moves_until_noon(), exchange=all_reduce())
    with relaxcomm.attach(model, optimizer, Algorithm((rule,)), process_group=group) as engine:
        train(model, optimizer)
        engine.mark("noon")
        model.load_state_dict(other(model))
        engine.mark("noon")


def test_a_mark_takes_no_weights_that_were_loaded_for_progress():
    with pytest.raises(Exception, match=r"has changed .* before step 1, and .* would take it for what"):
        relaxcomm.simulate(loaded_after_a_mark, 2)


def round_of_clients(group, at=None, *, keeps=False, ahead=False):
    """A round of two clients a worker, in which other weights are loaded, and perhaps put back.

    That is after a step, or ahead of it.
    """
    model, optimizer = copy.deepcopy(GIVEN)
    settings = {"algorithm": {"name": "fedavg", "clients": 4}, "bucket_bytes": 70}
    with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
        for step, _ in enumerate(engine.loader(range(32), batch_size=2)):
            if not ahead:
                train(model, optimizer)
            if step == at:
                before = kept(model)
                model.load_state_dict(other(model))
                engine.mark("validated", loss=0.5)
                if not keeps:
                    model.load_state_dict(before)
            if ahead:
                train(model, optimizer)
    return kept(model)


@pytest.mark.parametrize(("at", "ahead"), [(0, False), (3, False), (7, False), (4, True)])
def test_an_evaluation_beside_the_end_of_a_client_is_none_of_its_progress(at, ahead):
    without = relaxcomm.simulate(round_of_clients, 2)
    with_one = relaxcomm.simulate(lambda group: round_of_clients(group, at, ahead=ahead), 2)
    torch.testing.assert_close(with_one, without, rtol=0, atol=0)
    with pytest.raises(Exception, match=r"load_state_dict\(\) has changed .* fedavg, which moves"):
        relaxcomm.simulate(lambda group: round_of_clients(group, at, keeps=True, ahead=ahead), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "ends", [lambda engine: None, lambda engine: engine.switch("bsp")], ids=["end", "switch"]
)
@pytest.mark.parametrize("name", ["ssp", "heloco"])
def test_where_servers_hold_the_model_all_end_with_what_all_have_loaded(name, ends, dtype):
    """However much others have pushed that a rank has not read yet."""
    model, _ = make()
    given = {name: torch.full_like(value, 0.7) for name, value in model.to(dtype).state_dict().items()}

    def rank(group):
        model, optimizer = make()
        model.to(dtype)
        settings = {"algorithm": name, "bucket_bytes": 70}
        with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
            for _ in range(3):
                group.sleep(1.0 + group.rank())
                model(torch.ones(5, 3, dtype=dtype)).square().mean().backward()
                optimizer.step()
            model.load_state_dict(given)
            ends(engine)
        return torch.nn.utils.parameters_to_vector(model.parameters()).float()

    for found in relaxcomm.simulate(rank, 3):
        torch.testing.assert_close(found, torch.full_like(found, 0.7).to(dtype).float())


@pytest.mark.parametrize(
    "ends", [lambda engine: None, lambda engine: engine.switch("bsp")], ids=["end", "switch"]
)
@pytest.mark.parametrize("lost", [1e12, torch.inf, torch.nan])
@pytest.mark.parametrize("name", ["ssp", "heloco", "decoupled_diloco"])
def test_what_is_loaded_after_training_was_lost_is_what_all_end_with(name, lost, ends):
    """Servers hold numbers next to which it would be rounded away, or such as have no mean."""
    given = other(GIVEN[0])

    def rank(group):
        model, optimizer = make()
        algorithm = name if name == "ssp" else {"name": name, "steps": 2}
        settings = {"algorithm": algorithm, "bucket_bytes": 70}
        with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
            train(model, optimizer, 3)
            engine.together(lambda: engine.world.gather(None, "the end of training"))
            for service in engine._session.bound.state.services.values():
                service.part().fill_(lost)
            model.load_state_dict(given)
            ends(engine)
        torch.testing.assert_close(kept(model), given)

    relaxcomm.simulate(rank, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rank_that_has_loaded_counts_as_much_as_one_that_counts_with_what_servers_hold(dtype):
    def rank(group):
        model, optimizer = make()
        model.to(dtype)
        settings = {"algorithm": {"name": "ssp", "staleness": 0}, "bucket_bytes": 70}
        with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
            for _ in range(3):
                model(torch.ones(5, 3, dtype=dtype)).square().mean().backward()
                optimizer.step()
            with engine.averaged():
                served = kept(model)["0.weight"]
            if group.rank() == 1:
                model.load_state_dict({name: value + 3 for name, value in kept(model).items()})
            loaded = kept(model)["0.weight"]
        return served, loaded, kept(model)["0.weight"]

    found = relaxcomm.simulate(rank, 3)
    for _, _, end in found:
        torch.testing.assert_close(end, (found[0][0] + found[1][1] + found[2][0]) / 3)


def test_all_end_with_the_weights_of_one_which_has_loaded_them_too():
    """Its load changes nothing, and it counts with what is loaded like the others."""

    def rank(group):
        model, optimizer = make()
        with relaxcomm.attach(
            model, optimizer, {"algorithm": "ssp", "bucket_bytes": 70}, process_group=group
        ) as engine:
            for _ in range(3):
                group.sleep(1.0 + group.rank())
                train(model, optimizer, 1)
            of_first = engine.together(lambda: engine.world.gather(kept(model), "the weights"))[0]
            model.load_state_dict(of_first)
        torch.testing.assert_close(kept(model), of_first)

    relaxcomm.simulate(rank, 3)


@pytest.mark.parametrize("algorithm", ["heloco", "decoupled_diloco"])
def test_before_anything_was_pushed_a_load_is_what_all_end_with(algorithm):
    def rank(group):
        model, optimizer = copy.deepcopy(GIVEN)
        settings = {"algorithm": {"name": algorithm, "steps": 50}, "bucket_bytes": 70}
        with relaxcomm.attach(model, optimizer, settings, process_group=group):
            train(model, optimizer, 3)
            model.load_state_dict(given)
        torch.testing.assert_close(kept(model), given)

    given = other(GIVEN[0])
    relaxcomm.simulate(rank, 3)


@TOLD
def test_what_is_put_back_after_a_change_in_place_trains_on():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": "diloco"}):
        train(model, optimizer, 2)
        before = kept(model)
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        model.load_state_dict(before)
        train(model, optimizer)


@TOLD
def test_a_load_into_weights_that_are_clipped_after_each_step_is_refused():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}):
        for step in range(5):
            train(model, optimizer)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-5, 5)
            if step == 2:  # an evaluation that is taken back by a load is one all the same
                before = kept(model)
                torch._foreach_mul_(list(map(torch.Tensor.detach, model.parameters())), 0.5)
                model.load_state_dict(before)
        model.load_state_dict(other(model))
        with pytest.raises(UsageError, match="before step 5"):
            train(model, optimizer)


@pytest.mark.parametrize(
    "algorithm", [DILOCO, {"name": "ssp"}, {"name": "local_sgd", "steps": 3, "delay": 2}]
)
def test_a_load_after_weights_were_swapped_in_place_is_told(algorithm):
    """They may as well be put back by it."""
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}):
        train(model, optimizer, 2)
        for by in (0.5, 2.0):  # in, and out again
            torch._foreach_mul_(list(map(torch.Tensor.detach, model.parameters())), by)
        own = kept(model)
        model.load_state_dict(own)
        train(model, optimizer)  # nothing has changed
        torch._foreach_mul_(list(map(torch.Tensor.detach, model.parameters())), 0.5)
        model.load_state_dict(own)
        with pytest.warns(CompositionWarning, match=r"changed .* and 5 more.* cannot tell .* both ways"):
            train(model, optimizer)


def test_a_load_that_changes_the_order_of_entries_is_refused():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}):
        train(model, optimizer, 2)
        order, before = torch.tensor([1, 0, 3, 2]), kept(model)
        turned = {name: before[name][order] for name in ("0.weight", "0.bias")}
        model.load_state_dict({**before, **turned})
        with pytest.raises(UsageError, match=r"changed 0\.bias and 1 more before step 2"):
            train(model, optimizer)


def test_a_load_after_the_mean_was_held_is_refused():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}) as engine:
        train(model, optimizer)
        with engine.averaged():
            pass
        model.load_state_dict(other(model))
        with pytest.raises(UsageError, match="before step 1"):
            train(model, optimizer)


@TOLD
def test_weights_that_are_put_there_in_place_and_taken_back_by_loads_train_on_after_each_step():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}):
        for _ in range(4):
            train(model, optimizer)
            before = kept(model)
            torch._foreach_mul_(list(map(torch.Tensor.detach, model.parameters())), 0.5)
            model.load_state_dict(before)


def test_a_load_after_an_evaluation_is_refused_all_the_same():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}) as engine:
        train(model, optimizer)
        evaluates(model, optimizer, engine)
        train(model, optimizer)
        model.load_state_dict(other(model))
        with engine.averaged():
            pass
        with pytest.raises(UsageError, match="before step 2"):
            train(model, optimizer)


def test_a_load_before_a_join_ends_is_refused_before_the_models_are_exchanged():
    def rank(group):
        model, optimizer = make()
        with (
            relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}, process_group=group) as engine,
            engine.join(),
        ):
            train(model, optimizer, 2 + group.rank())
            if not group.rank():
                model.load_state_dict(other(model))

    with pytest.raises(Exception, match=r"has changed .* before step 2"):
        relaxcomm.simulate(rank, 2)


class ScheduleFree(torch.optim.SGD):
    """Holds other parameters while it is evaluated, as schedulefree's do."""

    def eval(self):
        self.move(1.0)

    def train(self):
        self.move(-1.0)

    def move(self, by):
        for group in self.param_groups:
            group["train_mode"] = by < 0
            for p in group["params"]:
                p.data.add_(by)


def test_parameters_of_a_schedule_free_optimizer_in_eval_mode_are_not_compared():
    model, optimizer = make(ScheduleFree)
    optimizer.train()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}) as engine:
        train(model, optimizer)
        optimizer.eval()
        evaluates(model, optimizer, engine)
        optimizer.train()
        train(model, optimizer)


def test_a_load_into_the_model_that_was_compiled_is_noticed():
    model, optimizer = make()
    with relaxcomm.attach(torch.compile(model, backend="eager"), optimizer, {"algorithm": DILOCO}):
        train(model, optimizer)
        model.load_state_dict(other(model))
        with pytest.raises(UsageError, match="before step 1"):
            train(model, optimizer)


def test_hooks_are_gone_after_close_and_a_copy_loads_freely():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}):
        train(model, optimizer)
        made = copy.deepcopy(model)
        made.load_state_dict(other(made))
        train(model, optimizer, 3)
    assert not any(one._load_state_dict_pre_hooks for one in model.modules())


LATE = [
    {"name": "local_sgd", "steps": 3, "delay": 2},
    {"name": "d_psgd"},
]


def loads_while_an_average_is_late(group, algorithm, loads_at, saves):
    """Nothing trains after the load; what parameters are then, and those of another engine that goes on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (1 + group.rank()))
    settings = {"algorithm": algorithm, "bucket_bytes": 70}
    with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
        for step in range(8):
            if step == loads_at:
                model.load_state_dict({name: torch.full_like(one, 7.0) for name, one in kept(model).items()})
                optimizer.param_groups[0]["lr"] = 0.0
            if saves is not None and step == loads_at + saves:
                engine.load_state_dict(copy.deepcopy(engine.state_dict()))
            take_step(model(torch.ones(2, 3)).square().sum(), optimizer)
            if step >= loads_at:
                yield from (one.unique().tolist() for one in model.parameters())
        engine.close(average=False)
    yield from (one.unique().tolist() for one in model.parameters())


@pytest.mark.every_other("algorithm", "loads_at", "saves")
@pytest.mark.parametrize("saves", [None, 0, 1])
@pytest.mark.parametrize("loads_at", [3, 4, 5])
@pytest.mark.parametrize("algorithm", LATE, ids=lambda one: one["name"])
def test_a_late_average_of_other_weights_moves_none_that_are_loaded(algorithm, loads_at, saves):
    def program(group):
        return list(loads_while_an_average_is_late(group, algorithm, loads_at, saves))

    for found in relaxcomm.simulate(program, 3):
        for values in found:
            assert values == pytest.approx([7.0] * len(values), abs=1e-5)


def test_the_others_take_a_late_average_that_one_that_loads_leaves():
    """What is on its way is that of all ranks, and each waits for it as before."""

    def program(group):
        model = nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with relaxcomm.attach(model, optimizer, {"algorithm": LATE[0]}, process_group=group) as engine:
            model.weight.data.fill_(float(group.rank()))
            for step in range(5):
                if step == 4 and group.rank() == 2:
                    model.load_state_dict({"weight": torch.full((1, 2), 7.0)})
                model(torch.ones(2, 2)).sum().backward()
                optimizer.step()
            engine.close(average=False)
        return model.weight.unique().tolist()

    assert relaxcomm.simulate(program, 3) == [[1.0], [1.0], [7.0]]


@pytest.mark.parametrize("algorithm", ["async_model_average", "ad_psgd"])
def test_a_load_where_workers_have_no_common_step_is_told(algorithm):
    def program(group):
        model, optimizer = make()
        settings = {"algorithm": algorithm, "bucket_bytes": 70}
        with relaxcomm.attach(model, optimizer, settings, process_group=group):
            train(model, optimizer, 2)
            model.load_state_dict(other(model))
            train(model, optimizer)

    with pytest.warns(CompositionWarning, match=r"changed .* before step 2, .*no common step.* Close"):
        relaxcomm.simulate(program, 3)


def test_a_state_that_is_saved_while_weights_are_evaluated_costs_the_run_nothing():
    def program(group, saves):
        model, optimizer = copy.deepcopy(GIVEN)
        optimizer.param_groups[0]["lr"] *= 1 + group.rank()
        with relaxcomm.attach(model, optimizer, {"algorithm": LATE[0]}, process_group=group) as engine:
            train(model, optimizer, 4)
            before = kept(model)
            model.load_state_dict(other(model))
            if saves:
                engine.run_state_dict()
            model.load_state_dict(before)
            train(model, optimizer, 2)
            engine.close(average=False)
        return kept(model)

    without, saved = (
        relaxcomm.simulate(lambda group, saves=saves: program(group, saves), 3) for saves in (False, True)
    )
    torch.testing.assert_close(saved, without, rtol=0, atol=0)


@pytest.mark.parametrize("save", [lambda engine: engine.state_dict(), lambda engine: engine.run_state_dict()])
def test_a_load_that_a_base_would_take_for_progress_is_not_saved(save):
    def program(group):
        model, optimizer = make()
        with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}, process_group=group) as engine:
            train(model, optimizer, 4)
            before = kept(model)
            model.load_state_dict(other(model))
            with pytest.raises(
                UsageError, match=r"has changed .* before step 4.* back before a step or a state"
            ):
                save(engine)
            model.load_state_dict(before)
            save(engine)
            train(model, optimizer)
        return True

    assert relaxcomm.simulate(program, 3) == [True] * 3


def steps_after_a_load(group, before, saves=None, width=4):
    """Weights after each step from a load on, which comes after so many others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings = {"algorithm": {"name": "delayed_sgd", "delay": 2}, "bucket_bytes": 150}
    with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
        for step in range(before + 6):
            if step == before:
                model.load_state_dict({name: torch.full_like(one, 0.5) for name, one in kept(model).items()})
            if saves is not None and step == before + saves:
                engine.load_state_dict(copy.deepcopy(engine.state_dict()))
            x = torch.full((2, 3), 1.0 + group.rank(), dtype=torch.float64)
            take_step(model(x).square().mean(), optimizer)
            if step >= before:
                yield torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    yield torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize(
    ("before", "saves", "width"), [(1, None, 4), (3, None, 4), (3, 0, 4), (3, 1, 4), (3, None, 60_000)]
)
def test_late_gradients_of_other_weights_move_none_that_are_loaded(before, saves, width):
    """Training goes on as of an engine that is attached to them."""

    def program(group, *arguments):
        return list(steps_after_a_load(group, *arguments, width=width))

    anew = relaxcomm.simulate(lambda group: program(group, 0), 3)
    found = relaxcomm.simulate(lambda group: program(group, before, saves), 3)
    for ours, theirs in zip(found, anew, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("ends", [False, True])
def test_a_change_of_ranks_leaves_what_a_run_ends_with(ends):
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": {"name": "ssp"}}) as engine:
        train(model, optimizer)
        loaded, given = engine._session.replica.loaded, other(model)
        model.load_state_dict(given)
        with loaded.ending() if ends else nullcontext(), loaded.outlasting():
            assert loaded.are_final is ends
            model[0].weight.data.zero_()
        assert torch.equal(model[0].weight, given["0.weight"]) is ends


def test_a_change_of_ranks_leaves_the_mean_with_which_a_run_ends():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": {"name": "ssp"}}) as engine:
        loaded, mean = engine._session.replica.loaded, kept(model)
        with loaded.ending():
            loaded.end_here()
            with loaded.outlasting():
                model[0].weight.data.zero_()
        torch.testing.assert_close(kept(model), mean, rtol=0, atol=0)
        assert not loaded.are_final


@pytest.mark.parametrize("evaluated", [False, True])
def test_what_is_known_of_loads_outlasts_a_change_of_ranks(evaluated):
    """What is put back after it is no progress, and neither is what the change itself writes."""
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, {"algorithm": DILOCO}) as engine:
        train(model, optimizer)
        loaded, trained = engine._session.replica.loaded, kept(model)
        model.load_state_dict(other(model))
        if not evaluated:
            model.load_state_dict(trained)
        names = loaded.others()
        assert bool(names) is evaluated
        with loaded.outlasting():
            assert loaded.others() == names
            if not evaluated:
                model.load_state_dict(other(model))
        assert loaded.others() == names
        if evaluated:
            model.load_state_dict(trained)
        assert loaded.others() == []
        train(model, optimizer)


@pytest.mark.parametrize("ends", [closes, switches_to_bsp])
def test_nor_are_they_in_a_momentum_after_the_end(ends):
    def program(group):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        settings = {"algorithm": "delayed_sgd", "bucket_bytes": 150}
        engine = relaxcomm.attach(model, optimizer, settings, process_group=group)
        for step in range(4):
            model(
                torch.full((2, 3), 1.0 + group.rank() + step, dtype=torch.float64)
            ).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        before = [optimizer.state[one]["momentum_buffer"].clone() for one in model.parameters()]
        model.load_state_dict(other(model))
        ends(engine, model)
        after = [optimizer.state[one]["momentum_buffer"].clone() for one in model.parameters()]
        engine.close()
        torch.testing.assert_close(after, [0.5 * one for one in before])

    relaxcomm.simulate(program, 3)

"""Another algorithm in the middle of a run: what is drained, carried over, averaged and refused."""

from __future__ import annotations

import copy
import re

import networkx
import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm import Algorithm, CompositionWarning, ConfigError, NonFiniteError, Rule, UsageError, primitives
from tests import references
from tests.engine.harness import (
    assert_histories_agree,
    in_process,
    on_gloo,
    simulated_workers,
    values,
)
from tests.engine.situations import SITUATIONS
from tests.models import CASES, make_optimizer, take_step, trainable

STEPS = 40
EF = {"error_feedback": {"top_k": {"density": 0.2}}}
SPARSE = {"rules": [{"payload": "gradients", "compressor": EF, "exchange": "all_gather"}]}
DELAYED = {"rules": [{"payload": "gradients", "exchange": "all_reduce", "delay": 1}]}
LATE = {
    "rules": [{"trigger": {"every": {"steps": 3}}, "payload": "deltas", "exchange": "all_reduce", "delay": 2}]
}
FIRST = {
    "local_sgd": {"name": "local_sgd", "steps": 5},
    "selsync": {"name": "selsync", "threshold": 0.1, "window_steps": 3},
    "ssp": {"name": "ssp", "staleness": 2},
    "async": "async_model_average",
    "delayed gradients": DELAYED,
    "delayed deltas": LATE,
    "sparse": SPARSE,
    "d_psgd": "d_psgd",
    "slowmo": {"name": "slowmo", "steps": 4},
}


def train(engine, model, optimizer, world, begin, end):
    history = []
    for step in range(begin, end):
        take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        history.append(values(model))
    return history


def switching(world, first, at, second, optimizer="momentum"):
    """Train with one algorithm, then with another; the model at the switch, and the history from there on."""
    model, optim = trainable("toy", optimizer, seed=world.rank)
    with world.attach(model, optim, {"algorithm": first}) as engine:
        train(engine, model, optim, world, 0, at)
        engine.switch(second)
        assert engine.algorithm.name == (second if isinstance(second, str) else second["name"])
        begin, buffers = values(model), [p for g in optim.state.values() for p in g.values()]
        state = [buffer.clone() for buffer in buffers if isinstance(buffer, torch.Tensor)]
        history = train(engine, model, optim, world, at, STEPS)
        assert engine.statistics["steps"] == STEPS
    return begin, state, [*history, values(model)]


def bsp_from(begin, states, at):
    """The reference: BSP from the parameters and each worker's optimizer state at the switch."""
    workers = simulated_workers(3, "momentum")
    workers.parameters = np.stack([begin] * 3)
    for optimizer, parameters, state in zip(workers.optimizers, workers.trained, states, strict=True):
        for parameter, buffer in zip(parameters, state, strict=True):
            optimizer.state[parameter]["momentum_buffer"] = buffer.clone()
    history = []
    for step in range(at, STEPS):
        workers.update(workers.gradients(step).mean(axis=0))
        history.append(workers.parameters)
    return history


@pytest.mark.every_other("first", "at")
@pytest.mark.filterwarnings("ignore::relaxcomm.CompositionWarning")
@pytest.mark.parametrize("at", [1, 13])
@pytest.mark.parametrize("first", FIRST)
def test_from_any_to_bsp(first, at):
    """All ranks begin with the same model, and go on as BSP does from there with their own momentum."""
    found = in_process(switching, 3, FIRST[first], at, "bsp")
    for begin, _, _ in found:
        np.testing.assert_array_equal(begin, found[0][0])
    expected = bsp_from(found[0][0], [state for _, state, _ in found], at)
    for rank, (_, _, history) in enumerate(found):
        for step, rows in enumerate(expected):
            np.testing.assert_allclose(history[step], rows[rank], rtol=1e-9, atol=1e-10)


def test_from_bsp_to_local_sgd():
    """The new clock begins at 0: what is known as post-local SGD."""
    second = {"name": "local_sgd", "steps": 5}
    found = in_process(switching, 3, "bsp", 10, second)
    expected = references.post_local_sgd(simulated_workers(3), STEPS, 5, after=10)[10:]
    assert_histories_agree([history for _, _, history in found], expected)


@pytest.mark.every_other("first", "debug")
@pytest.mark.ranks
@pytest.mark.parametrize("first", ["ssp", "delayed gradients", "sparse"])
@pytest.mark.filterwarnings("ignore::relaxcomm.CompositionWarning")
def test_on_gloo(first, debug):
    found = on_gloo(switching, 3, FIRST[first], 7, {"name": "ssp", "staleness": 0}, debug=debug)
    for begin, _, history in found:
        np.testing.assert_array_equal(begin, found[0][0])
        np.testing.assert_allclose(history[-1], found[0][2][-1], rtol=1e-12)


def sent_by_switch(world, optimizer, second, at):
    """Bytes of a switch from averages after 5 local steps; then a guard watches for drift."""
    model, optim = trainable("toy", optimizer, seed=world.rank)
    config = {"algorithm": FIRST["local_sgd"], "drift_guard": {"every_steps": 1}}
    with world.attach(model, optim, config) as engine:
        train(engine, model, optim, world, 0, at)
        before = engine.statistics["bytes_sent"]
        engine.switch(second)
        sent = engine.statistics["bytes_sent"] - before
        train(engine, model, optim, world, at, STEPS)
    return sent / (2 * 2 / 3 * 1800), values(model)


@pytest.mark.parametrize(
    ("optimizer", "second", "at", "models"),
    [
        ("plain", "bsp", 5, 0),
        ("plain", "bsp", 6, 1),
        ("momentum", "bsp", 5, 1),
        ("momentum", "bsp", 6, 2),
        ("adamw", "bsp", 5, 2),
        ("momentum", "slowmo", 5, 0),
        ("momentum", "slowmo", 6, 1),
        ("momentum", {"name": "post_local_sgd", "after_steps": STEPS}, 6, 2),  # as bsp, to the end
    ],
)
def test_a_switch_sends_what_must_be_equal_and_is_not(optimizer, second, at, models):
    """Replicas; and momentum, one or two times as large, where mean gradients are to keep replicas equal."""
    for sent, last in (found := in_process(sent_by_switch, 3, optimizer, second, at)):
        assert sent == pytest.approx(models, rel=0.01)
        np.testing.assert_array_equal(last, found[0][1])


def carried(world, residuals, second):
    """One gradient, then none: what comes out after the switch was left to send before."""
    model = torch.nn.Linear(30, 2, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sent = torch.zeros(60, dtype=torch.float64)
    with world.attach(model, optimizer, {"algorithm": SPARSE}) as engine:
        for step in range(80):
            if step == 2:
                engine.switch(second, residuals=residuals)
            scale = 0.0 if step else 1.0
            (model.weight * torch.arange(60.0).view(2, 30).double() * scale).sum().backward()
            model(torch.zeros(1, 30).double())  # the engine's hooks are the model's
            sent += model.weight.grad.reshape(-1)
            optimizer.step()
            optimizer.zero_grad()
    return sent.numpy()


def spelt(compressor):
    return {"rules": [{"payload": "gradients", "compressor": compressor, "exchange": "all_gather"}]}


def test_residuals_are_carried():
    found = in_process(carried, 3, "carry", spelt({"error_feedback": {"top_k": {"density": 0.5}}}))
    np.testing.assert_allclose(found[0], np.arange(60.0), rtol=1e-12)


def test_residuals_are_dropped_if_told_so():
    with pytest.warns(CompositionWarning, match="drops what was left to send of weight"):
        found = in_process(carried, 3, "drop", spelt({"error_feedback": {"top_k": {"density": 0.5}}}))
    assert found[0].sum() < np.arange(60.0).sum()


def test_what_cannot_be_carried_is_told():
    with pytest.warns(CompositionWarning, match="drops what was left to send"):
        in_process(carried, 3, "carry", "bsp")


PARTS = {"rules": [{"payload": "gradients", "compressor": EF, "exchange": "scatter_gather"}]}


def in_parts(world, second):
    """Three steps whose gradients are left to send for the most part, and three without any."""
    model = torch.nn.Linear(20, 1, bias=False).double()
    optimizer = make_optimizer("plain", model)
    with world.attach(model, optimizer, {"algorithm": PARTS}) as engine:
        for step in range(6):
            if step == 3:
                engine.switch(second)
            optimizer.zero_grad()
            (model(torch.arange(1.0, 21.0).double()) * (step < 3)).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("second", ["bsp", PARTS])
def test_residuals_of_parts_are_dropped_and_that_is_told(second):
    with pytest.warns(CompositionWarning, match="drops what was left to send of weight"):
        in_process(in_parts, 3, second)


def of_two_payloads(world):
    """One rule sends half the gradients, the other half the deltas; then gradients alone, in one bucket."""
    model = torch.nn.Linear(30, 2).double()
    optimizer = make_optimizer("plain", model)
    rules = [
        {"payload": payload, "compressor": EF, "exchange": "all_gather", "select": [name]}
        for payload, name in (("gradients", "weight"), ("deltas", "bias"))
    ]
    with world.attach(model, optimizer, {"algorithm": {"rules": rules}}) as engine:
        take_step(model(torch.randn(3, 30).double()).square().sum(), optimizer)
        engine.switch(SPARSE)


def test_what_lies_beside_something_that_is_carried_is_told_to_be_dropped():
    with pytest.warns(CompositionWarning, match="drops what was left to send of bias$"):
        in_process(of_two_payloads, 3)


def phased(world, resumes, first="bsp"):
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    config = {
        "algorithm": first,
        "phases": [{"after_steps": 10, "algorithm": {"name": "local_sgd", "steps": 5}}],
    }
    engine = world.attach(model, optimizer, config)
    history = train(engine, model, optimizer, world, 0, 17)
    if resumes:
        saved = engine.state_dict()
        engine.close(average=False)
        parameters = {name: value.clone() for name, value in model.state_dict().items()}
        engine = world.attach(model, optimizer, config)
        model.load_state_dict(parameters)  # attach made them those of rank 0
        engine.load_state_dict(saved)
        assert engine.algorithm.name == "local_sgd"
    history += train(engine, model, optimizer, world, 17, STEPS)
    assert engine.algorithm.name == "local_sgd"
    engine.close()
    return [*history, values(model)]


@pytest.mark.parametrize("resumes", [False, True])
def test_phases_of_the_yaml(resumes, capsys):
    expected = references.post_local_sgd(simulated_workers(3), STEPS, 5, after=10)
    found = in_process(phased, 3, resumes)
    assert_histories_agree(found, expected)
    assert capsys.readouterr().err.count("relaxcomm: local_sgd from step 10\n") == 1 + resumes


def test_replicas_that_differ_are_resumed_as_they_were_saved():
    """Also if the algorithm before the phase would have averaged them."""
    resumed, whole = (in_process(phased, 3, resumes, FIRST["slowmo"]) for resumes in (True, False))
    assert not np.allclose(whole[0][16], whole[1][16])
    for one, other in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def resumed_by_others(world, first, second):
    """What a run ends with, and one that goes on from its second phase where NaN came in the first."""

    def begin(seed):
        model, optimizer = trainable("toy", "adamw", seed=seed)
        config = {"algorithm": first, "phases": [{"after_steps": 4, "algorithm": second}]}
        return model, optimizer, world.attach(model, optimizer, config)

    def end(model, optimizer, engine):
        train(engine, model, optimizer, world, 8, 14)
        engine.close(average=False)
        return [values(model), *(one["exp_avg"].numpy().copy() for one in optimizer.state.values())]

    whole = model, optimizer, engine = begin(world.rank)
    train(engine, model, optimizer, world, 0, 8)
    saved = copy.deepcopy(engine.run_state_dict())
    expected = end(*whole)
    model, optimizer, engine = begin(9)
    train(engine, model, optimizer, world, 20, 22)
    take_step(CASES["toy"].local_loss(model, 22, world.rank) * float("nan"), optimizer)
    engine.load_run_state_dict(saved)
    return expected, end(model, optimizer, engine)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("local_sgd", {"name": "post_local_sgd", "steps": 3, "after_steps": 2}),  # equal at first
        (DELAYED, {"name": "local_sgd", "steps": 3}),  # whose gradients are on their way
    ],
    ids=["moments differ", "late gradients"],
)
def test_a_phase_is_resumed_with_the_moments_that_were_saved(first, second):
    """The switch to its algorithm has averaged them, or stepped the optimizer by what was late."""
    for expected, found in in_process(resumed_by_others, 3, first, second):
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(other, one)


def accumulating(world):
    """The second phase begins before a forward under `no_sync`, on rank 0 before one outside of it."""
    situation = SITUATIONS["uneven_accumulation"]
    torch.manual_seed(0)
    model = situation.make()
    optimizer = make_optimizer("plain", model)
    phase = {"after_steps": 2, "algorithm": "bsp"}
    config = {"algorithm": {"name": "local_sgd", "steps": 2}, "bucket_bytes": 512, "phases": [phase]}
    with world.attach(model, optimizer, config) as engine:
        for step in range(5):
            situation.backward(model, step, world.rank, engine.no_sync)
            optimizer.step()
            optimizer.zero_grad()
        engine.close(average=False)
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_phase_that_begins_under_no_sync_exchanges_nothing_there():
    first, *others = in_process(accumulating, 3)
    for other in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


def refused(world, what):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        if what == "inside":
            CASES["toy"].local_loss(model, 0, world.rank).backward()
            engine.switch("local_sgd")
        elif what == "differs":
            engine.switch("local_sgd" if world.rank else {"name": "local_sgd", "steps": 3})
        elif what == "residuals":
            engine.switch("bsp", residuals="cary")
        else:
            engine.switch(what)


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("inside", UsageError, "in the middle of step 0; switch after"),
        ("differs", ConfigError, "rank 0: .*steps=3.*; rank 1: "),
        ("fedavg", UsageError, "chooses the batches"),
        ("residuals", ConfigError, "residuals='cary' is not allowed; give 'carry' or 'drop'"),
        ("local_sdg", ConfigError, "did you mean 'local_sgd'"),
    ],
)
def test_refusals(what, kind, words):
    with pytest.raises(kind, match=words):
        in_process(refused, 3, what)


def refused_everywhere(world, wanted):
    """What every rank is told when one cannot switch; training goes on as before."""
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        train(engine, model, optimizer, world, 0, 3)
        with pytest.raises(relaxcomm.RelaxcommError) as told:
            engine.switch(wanted[world.rank])
        assert engine.algorithm.name == "bsp"
        history = train(engine, model, optimizer, world, 3, 6)
    return (type(told.value), str(told.value)), history[-1]


@pytest.mark.parametrize(
    ("wanted", "kind", "words"),
    [
        (("bsp", "local_sdg", "bsp"), ConfigError, "rank 1: .*did you mean 'local_sgd'"),
        (("bsp", "bsp", "fedavg"), UsageError, "rank 2: fedavg chooses the batches"),
        (("bsp", "local_sgd", "bsp"), ConfigError, "ranks switch to different algorithms: rank 0"),
    ],
)
def test_what_is_wrong_on_one_rank_is_told_on_all(wanted, kind, words):
    found = in_process(refused_everywhere, 3, wanted)
    assert {told[0] for told, _ in found} == {kind}
    assert len({told[1] for told, _ in found}) == 1
    assert re.match(words, found[0][0][1])
    for _, last in found:
        np.testing.assert_array_equal(last, found[0][1])


def spoilt(world):
    """Steps and parameters after a switch that one rank's momentum has stopped, and after a second one."""
    model, steps = CASES["toy"].model(seed=0), []
    optimizer = make_optimizer("momentum", model)
    with world.attach(model, optimizer, {"algorithm": FIRST["slowmo"], "bucket_bytes": 600}) as engine:
        train(engine, model, optimizer, world, 0, 3)
        moment = next(iter(optimizer.state.values()))["momentum_buffer"]
        kept, before = moment.clone(), values(model)
        if world.rank == 1:
            moment.fill_(float("nan"))
        with pytest.raises(NonFiniteError, match=r"momentum_buffer of .* on rank 1"):
            engine.switch("bsp")
        np.testing.assert_array_equal(values(model), before)
        moment.copy_(kept)
        train(engine, model, optimizer, world, 3, 8)
        steps.append(engine.statistics["steps"])
        engine.switch("bsp")
        train(engine, model, optimizer, world, 8, 10)
        steps.append(engine.statistics["steps"])
    return steps, values(model)


def test_where_a_switch_fails_on_its_way_the_algorithm_goes_on():
    found = in_process(spoilt, 3)
    for steps, parameters in found:
        assert steps == [8, 10]
        np.testing.assert_array_equal(parameters, found[0][1])


def mean_kept(world):
    """Parameters after a switch that a moment has stopped and one that went well, while nobody learns."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5)
    with world.attach(model, optimizer, {"algorithm": "ad_psgd", "bucket_bytes": 16}) as engine:
        for parameter in model.parameters():
            parameter.data.fill_(8.0 * 2**world.rank)
        for step in range(6):
            world.group.sleep(1.0 + world.rank)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if step in (2, 3):
                moment = optimizer.state[model.weight]["momentum_buffer"]
                moment[0, 0] = float("nan") if world.rank == 1 else 0.0
                with pytest.raises(NonFiniteError, match="momentum_buffer of weight on rank 1"):
                    engine.switch("bsp")
                moment.fill_(0.0)
        engine.switch("bsp")
        return values(model)


def test_a_failed_switch_loses_nothing_that_servers_keep():
    found = in_process(mean_kept, 4)
    np.testing.assert_allclose(found, np.full((4, 6), 30.0), rtol=1e-6)


def test_phases_must_follow_each_other():
    phase = {"after_steps": 5, "algorithm": "local_sgd"}
    with pytest.raises(ConfigError, match="a larger after_steps than the last"):
        relaxcomm.config.load({"algorithm": "bsp", "phases": [phase, phase]})


def directed(*edges):
    return relaxcomm.topology.from_networkx(networkx.DiGraph(edges))


BEFORE, AFTER = directed((0, 1), (1, 2), (2, 0), (0, 2)), directed((0, 1), (1, 2), (2, 0), (1, 0))
PATH = relaxcomm.topology.from_networkx(networkx.path_graph(3))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (primitives.push_sum(topology=BEFORE), primitives.push_sum(topology=AFTER)),
        (
            primitives.choco_gossip(gamma=0.5, topology=PATH),
            primitives.choco_gossip(gamma=0.5, topology=primitives.ring()),
        ),
    ],
    ids=["push_sum", "choco_gossip"],
)
def test_what_an_exchange_keeps_of_the_parameters_is_made_anew(first, second):
    """Replicas are equal after a switch: they stay so, and so does their mean."""

    def rank(group):
        model = torch.nn.Linear(1, 1, bias=False).double()
        model.weight.data.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        one, other = (
            Algorithm((Rule(payload=primitives.parameters(), exchange=exchange),), name=name)
            for exchange, name in ((first, "first"), (second, "second"))
        )
        with relaxcomm.attach(model, optimizer, one, process_group=group) as engine:
            for step in range(8):
                optimizer.zero_grad()
                (model.weight.sum() * (-9.0 if step < 3 and group.rank() == 0 else 0.0)).backward()
                optimizer.step()
                if step == 3:
                    engine.switch(other)
            return model.weight.item()

    assert relaxcomm.simulate(rank, 3) == pytest.approx([9.0] * 3)

"""Settings that never synchronise say so: before the run where its length is known, and at its end."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial

import pytest
import torch

import relaxcomm
from relaxcomm import Algorithm, Rule
from relaxcomm.cli.table import cells
from relaxcomm.config import load
from relaxcomm.engine.reporting.run_warnings import warn_of_short_run
from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives import all_reduce, deltas, every, parameters, relative_gradient_change
from relaxcomm.step.held_states import fingerprint
from relaxcomm.training.results import Point, RankRecord, merge
from tests.engine.harness import in_process, on_gloo, train
from tests.models import CASES, make_optimizer, take_step, trainable


def late(start, end=None):
    return Rule(trigger=every(steps=2), payload=parameters(), exchange=all_reduce(), active=(start, end))


IDLE = {
    "diloco": ({"algorithm": "diloco"}, ["diloco has never exchanged in 6 steps: .*every.steps=500.$"]),
    "huge": (
        {"algorithm": {"name": "local_sgd", "steps": 10**12}},
        ["local_sgd has never exchanged in 6 steps"],
    ),
    "active": (
        {"algorithm": Algorithm((late(0, 4), late(10)), name="two")},
        ["rule 1 of two has never exchanged in 6 steps: .* from step 10 on$"],
    ),
    "over": (
        {"algorithm": Algorithm((late(0, 1), late(2)), name="short")},
        [r"rule 0 of short has never exchanged in 6 steps: it exchanges by every.steps=2.$"],
    ),
    "phases": (
        {"algorithm": "bsp", "phases": [{"after_steps": 10, "algorithm": "diloco"}]},
        [r"the phase with diloco .after_steps: 10. never began: the run had 6 steps"],
    ),
    "phase": (
        {"algorithm": "bsp", "phases": [{"after_steps": 4, "algorithm": "diloco"}]},
        ["diloco has never exchanged in 2 steps"],
    ),
    "busy": ({"algorithm": {"name": "local_sgd", "steps": 6}}, []),
}


def matches(messages, patterns):
    assert len(messages) == len(patterns), messages
    for message, pattern in zip(messages, patterns, strict=True):
        assert re.match(f"relaxcomm: {pattern}", message), message


@pytest.mark.parametrize("name", IDLE)
def test_what_never_exchanged_is_named_once_at_the_end(caplog, name):
    config, patterns = IDLE[name]
    in_process(train, 3, config, 6)
    matches(caplog.messages, patterns)


@pytest.mark.parametrize("name", IDLE)
def test_it_is_known_before_a_run_of_known_length(caplog, name):
    config, patterns = IDLE[name]
    loaded = load(config)
    warn_of_short_run(loaded.algorithm, loaded.phases, 6)
    matches(
        caplog.messages,
        [
            p.replace("has never exchanged", "will never exchange").replace(
                "never began: the run had", "will never begin: the run has"
            )
            for p in patterns
        ],
    )
    caplog.clear()
    if name != "over":
        warn_of_short_run(loaded.algorithm, loaded.phases, 10**13)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("steps", "patterns"),
    [
        (6, ["the phase with diloco .after_steps: 6. will never begin: the run has 6 steps"]),
        (7, ["diloco will never exchange in 1 steps"]),
    ],
)
def test_a_phase_begins_with_the_step_after_those_before_it(caplog, steps, patterns):
    loaded = load({"algorithm": "selsync", "phases": [{"after_steps": 6, "algorithm": "diloco"}]})
    warn_of_short_run(loaded.algorithm, loaded.phases, steps)
    matches(caplog.messages, patterns)


def test_a_rule_that_selects_no_parameter_is_told_of_at_once(caplog):
    misspelt = Rule(trigger=every(steps=2), payload=deltas(), exchange=all_reduce(), select="haed.*")
    rules = replace(misspelt, select=("1/2", "2/2")), misspelt  # fragments have names only for a model
    in_process(train, 3, {"algorithm": Algorithm(rules, name="two")}, 4)
    reason = r"select is .'haed..'., and no parameter of such a name is trained$"
    said = [f"rule 1 of two will never exchange: {reason}", f"rule 1 of two has never .* 4 steps: {reason}"]
    matches(caplog.messages, said)


@frozen
class never(relative_gradient_change):
    """Nobody wants to exchange."""

    facts = relative_gradient_change.facts

    def vote(self, cx, state, observation):
        return False


def test_what_ranks_vote_on_may_come_in_any_step_and_is_told_of_at_the_end_alone(caplog):
    rule = Rule(trigger=never(threshold=1.0), payload=parameters(), exchange=all_reduce())
    voted = Algorithm((rule,), name="voted")
    warn_of_short_run(voted, (), 1)
    assert not caplog.messages
    in_process(train, 3, {"algorithm": voted}, 6)
    matches(caplog.messages, ["voted has never exchanged in 6 steps: .* and no vote was for it$"])


def test_one_worker_alone_and_an_empty_run_have_nothing_to_say(caplog):
    later = {"phases": [{"after_steps": 10, "algorithm": "bsp"}]}
    in_process(train, 1, {"algorithm": "diloco", **later}, 3)
    in_process(train, 3, {"algorithm": "diloco", **later}, 0)
    assert not caplog.messages


NAMES = ["bsp", "d_psgd", "ssp", "async_model_average", "ad_psgd", "sgp", "selsync", "delayed_sgd", "qsgd"]


@pytest.mark.parametrize("name", NAMES)
def test_algorithms_that_exchange_are_not_named(caplog, name):
    in_process(train, 3, {"algorithm": name}, 4, "plain")
    assert not caplog.messages


def stepped_by_another(world, algorithm, with_another, own_steps):
    model = CASES["toy"].model()
    optimizer, another = make_optimizer("plain", model), make_optimizer("plain", model)
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(3):
            CASES["toy"].local_loss(model, step, world.rank).backward()
            if step < own_steps:
                optimizer.step()
            elif with_another:
                another.step()


@pytest.mark.parametrize("with_another", [True, False])
def test_backwards_without_a_step_of_the_engine_s_optimizers_are_told_of(caplog, with_another):
    in_process(stepped_by_another, 3, "local_sgd", with_another, 0)
    matches(caplog.messages, ["local_sgd has exchanged nothing: there were 3 backwards, and no step"])


def test_backwards_that_exchange_or_follow_the_last_step_are_not_told_of(caplog):
    in_process(stepped_by_another, 3, "bsp", True, 0)
    assert not caplog.messages
    in_process(stepped_by_another, 3, "local_sgd", False, 2)
    matches(caplog.messages, ["local_sgd has never exchanged in 2 steps"])


def read_on(world, algorithm, with_gradients, made_after):
    model = CASES["toy"].model()
    with world.attach(model, make_optimizer("plain", model), {"algorithm": algorithm}) as engine:
        loader = engine.loader(torch.zeros(12, 2), batch_size=2)
        counted = [len(batch) for batch in loader]
    if made_after:  # such as a loader an epoch
        loader = engine.loader(torch.zeros(12, 2), batch_size=2)
    with torch.set_grad_enabled(with_gradients):
        for _ in range(2):  # such as epochs after a close() that is indented too far
            counted += [len(batch) for batch in loader]
    return sum(counted)


@pytest.mark.parametrize("algorithm", ["bsp", "fedavg"])
@pytest.mark.parametrize("with_gradients", [True, False])
@pytest.mark.parametrize("made_after", [True, False])
def test_a_loader_that_is_read_for_training_after_close_is_told_of_once(
    caplog, algorithm, with_gradients, made_after
):
    samples = in_process(read_on, 3, algorithm, with_gradients, made_after)
    assert sum(samples) == 3 * 12
    matches(caplog.messages, [".*nothing is exchanged in these steps"] * with_gradients)


def resumed(world):
    def engine():
        model, optimizer = trainable("toy", "plain")
        return (
            model,
            optimizer,
            world.attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 3}}),
        )

    state = None
    for steps in (4, 1):  # the second part alone has no exchange
        model, optimizer, running = engine()
        with running:
            if state is not None:
                running.load_state_dict(state)
            for step in range(steps):
                take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            state = running.state_dict()


def test_a_resumed_run_knows_what_was_exchanged_before(caplog):
    in_process(resumed, 3)
    assert not caplog.messages


def result_of(synchronisations, workers=2):
    counts = {
        "steps": 10,
        "synchronisations": synchronisations,
        "lssr": 1.0,
        "bytes_sent": 5,
        "bytes_received": 5,
        "bytes_uncompressed": 100,
        "evaluation_bytes_sent": 0,
        "step_seconds": 0.1,
        "exposed_communication_seconds": 0.0,
        "hidden_communication_seconds": 0.0,
    }
    record = RankRecord((Point(10, 1.0, 5, 0.5),), 1.0, counts, {})
    facts = {
        "algorithm": "a",
        "composition": "",
        "task": "t",
        "metric": "m",
        "higher_is_better": True,
        "device": "cpu",
        "seed": 0,
    }
    return merge([record] * workers, **facts)


def test_the_table_shows_no_saving_where_nothing_was_exchanged():
    _, rows = cells([result_of(0), result_of(2), result_of(0, workers=1)])
    assert [row[-1] for row in rows] == ["never exchanged", "20.0x", "-"]


def joined(world):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = io.StringIO()
    with redirect_stderr(text), relaxcomm.attach(model, optimizer, "local_sgd"):
        return text.getvalue()


@pytest.mark.ranks
def test_rank_0_says_what_it_joined():
    assert on_gloo(joined, 3) == ["relaxcomm: 3 ranks, local_sgd, gloo\n", "", ""]


def test_a_rank_alone_says_so(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert joined(None) == (
        "relaxcomm: 1 rank, local_sgd, alone: several are started by torchrun, or meet by init_process_group "
        "before attach\n"
    )


def attached_with_state(world, algorithm, prepare, kind):
    """Attach with an optimizer that holds something already."""
    model = CASES["toy"].model()
    optimizer = kind(model.parameters(), lr=0.01)
    prepare(world, model, optimizer)
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        pass


def alone(world, model, optimizer):
    CASES["toy"].local_loss(model, 0, world.rank).backward()
    optimizer.step()


def on_rank_0(world, model, optimizer):
    if world.rank == 0:
        alone(world, model, optimizer)


def alike(world, model, optimizer):
    CASES["toy"].local_loss(model, 0, 0).backward()
    optimizer.step()
    if world.rank:  # as a checkpoint that each rank reads
        optimizer.load_state_dict(optimizer.state_dict())


def codes(world, model, optimizer):
    alone(world, model, optimizer)
    for state in optimizer.state.values():
        state["codes"] = torch.full((3,), world.rank, dtype=torch.uint8)


def parts(world, model, optimizer):
    """As `ZeroRedundancyOptimizer.load_state_dict` leaves it."""
    alone(world, model, optimizer)
    for index, parameter in enumerate(optimizer.state):
        if index % world.size != world.rank:
            optimizer.state[parameter] = None


def in_another_order(world, model, optimizer):
    """As a script that builds its groups from a set of parameters does."""
    alike(world, model, optimizer)
    group = optimizer.param_groups[0]
    group["params"] = group["params"][world.rank :] + group["params"][: world.rank]


@pytest.mark.parametrize("kind", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam])
@pytest.mark.parametrize(
    ("algorithm", "prepare", "warns"),
    [
        ("bsp", alone, True),
        ("topk_sgd", on_rank_0, True),
        ("bsp", alike, False),
        ("bsp", in_another_order, False),
        ("bsp", codes, False),
        ("bsp", parts, False),
        ("local_sgd", alone, False),
    ],
)
def test_moments_by_which_replicas_part_are_told_of_at_attach(caplog, kind, algorithm, prepare, warns):
    in_process(attached_with_state, 3, algorithm, prepare, kind)
    said = [one for one in caplog.messages if "never exchanged" not in one]
    matches(said, [r"at attach\(\) the ranks' optimizers hold different .*engine.switch\(\)"] * warns)


def test_moments_are_compared_with_one_wait(monkeypatch):
    """On a GPU each look at a number would be a wait of the host."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(5)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    looks = []
    for name in ("item", "tolist", "__bool__", "cpu"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, *args, real=real: looks.append(real) or real(self, *args)
        )
    assert fingerprint([optimizer], list(model.named_parameters()))
    assert len(looks) == 1


ODD = {
    "a list": lambda p: [1.0, torch.ones(3)],
    "a tensor": torch.ones_like,
    "conjugate": lambda p: {"moment": torch.ones(3, dtype=torch.complex64).conj()},
    "negative": lambda p: {"moment": torch._neg_view(torch.ones(3))},
    "a number on meta": lambda p: {"moment": torch.ones((), device="meta")},
    "on meta": lambda p: {"moment": torch.ones(3, device="meta")},
    "a sparse number": lambda p: {"moment": torch.ones(()).to_sparse()},
    "nested": lambda p: {"moment": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])},
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("held", ODD)
def test_what_cannot_be_compared_is_no_reason_not_to_attach(held):
    model = CASES["toy"].model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for p in model.parameters():
        optimizer.state[p] = ODD[held](p)
    assert (fingerprint([optimizer], list(model.named_parameters())) is None) == (
        held not in ("conjugate", "negative")
    )
    with relaxcomm.attach(model, optimizer, "bsp"):
        pass

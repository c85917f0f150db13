"""Algorithms that are chosen when the first steps have been measured: `auto`, and planners of plug-ins."""

from __future__ import annotations

import copy
import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import Optimizer

import relaxcomm
from relaxcomm import Algorithm, CompositionError, ConfigError, Link, Rule
from relaxcomm.planner import link_probes
from relaxcomm.plugin import Measured, Planner, PlannerFacts, exchange_cost, frozen, one_tensor
from relaxcomm.primitives import (
    all_reduce,
    complete,
    deltas,
    error_feedback,
    every,
    every_step,
    gradients,
    identity,
    parameters,
    quantize,
    top_k,
)
from relaxcomm.step.agreements import Agreements
from relaxcomm_algorithms.auto import least_time
from relaxcomm_algorithms.bsp import bsp
from relaxcomm_algorithms.d_psgd import d_psgd
from relaxcomm_algorithms.diloco import diloco
from relaxcomm_algorithms.local_sgd import local_sgd
from relaxcomm_algorithms.post_local_sgd import post_local_sgd
from relaxcomm_algorithms.ssp import ssp
from tests.engine.harness import (
    World,
    assert_histories_agree,
    engine_state,
    in_process,
    on_gloo,
    simulated_workers,
    values,
)
from tests.engine.situations import SITUATIONS
from tests.models import CASES, make_optimizer, take_step, trainable

STEPS = 20
ENTRIES = 225  # of the toy model, in float64
LINK = Link(latency_seconds=0.0005, bytes_per_second=2e6)


@frozen
class by_step_time(Planner):
    """Local SGD with as many local steps as a step takes milliseconds."""

    steps: int = 4

    @property
    def facts(self) -> PlannerFacts:
        return PlannerFacts(after_steps=self.steps)

    def choose(self, measured: Measured) -> tuple[object, str]:
        return local_sgd(steps=round(1000 * measured.step_seconds)), "so it was told"


@frozen
class always(Planner):
    """The same whatever was measured; an empty name is an error of its own."""

    name: str = "bsp"

    @property
    def facts(self) -> PlannerFacts:
        return PlannerFacts(after_steps=4)

    def choose(self, measured: Measured) -> tuple[object, str]:
        if not self.name:
            raise ConfigError(f"nothing suits {measured.world_size} workers")
        return self.name, "it always does"


@frozen
class instance(Planner):
    """An algorithm made in Python, whatever was measured."""

    algorithm: Algorithm

    @property
    def facts(self) -> PlannerFacts:
        return PlannerFacts(after_steps=4)

    def choose(self, measured: Measured) -> tuple[object, str]:
        return self.algorithm, "it was given"


def chosen_by(planner: Planner, period: int = 4) -> Algorithm:
    """Parameters are averaged after `period` steps; meanwhile a planner measures."""
    rule = Rule(trigger=every(steps=period), payload=parameters(), exchange=all_reduce())
    return Algorithm((rule,), name="measuring", planner=planner)


class Rank:
    """One simulated rank in training, whose step computes for `seconds` in virtual time."""

    def __init__(
        self, group: Any, settings: Any, seconds: float = 0.002, optimizer: type[Optimizer] | None = None
    ) -> None:
        self.group, self.world, self.seconds = group, World(group.rank(), group.size(), group), seconds
        self.settings = settings if isinstance(settings, dict) else {"algorithm": settings}
        self.model = CASES["toy"].model(seed=group.rank())
        self.optimizer = make_optimizer("momentum", self.model)
        if optimizer is not None:
            self.optimizer = optimizer(self.optimizer.param_groups[0]["params"], lr=1e-3)
        self.history: list[Any] = []
        self.begin()

    def begin(self) -> None:
        """Attach."""
        self.engine = self.world.attach(self.model, self.optimizer, self.settings)

    def train(self, begin: int, end: int) -> list[Any]:
        """The parameters after each step."""
        for step in range(begin, end):
            loss = CASES["toy"].local_loss(self.model, step, self.world.rank)
            self.group.sleep(self.seconds)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.history.append(values(self.model))
        return self.history

    def restart(self) -> None:
        """Save, close, attach anew, and load."""
        saved = self.engine.state_dict()
        self.engine.close(average=False)
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.begin()
        self.model.load_state_dict(kept)  # attach made them those of rank 0
        self.engine.load_state_dict(saved)


def measured(group, seconds_by_rank):
    rank = Rank(group, "auto", seconds_by_rank[group.rank()])
    rank.train(0, 9)
    return engine_state(rank.engine)["measured"], rank.engine.choice


@pytest.mark.parametrize(
    "link",
    [LINK, Link(latency_seconds=0.03, bytes_per_second=1e8), Link(latency_seconds=0, bytes_per_second=3e3)],
)
def test_what_is_measured_is_the_link_and_the_slowest_workers_step(link):
    found = relaxcomm.simulate(lambda group: measured(group, (0.002, 0.007, 0.003)), 3, link=link)
    for seen, choice in found:
        assert (seen, choice) == found[0]
        assert seen["step_seconds"] == pytest.approx(0.007)
        assert seen["latency_seconds"] == pytest.approx(
            4 * link.latency_seconds + of_a_probe(link)
        )  # a ring of three
        assert seen["bytes_per_second"] == pytest.approx(link.bytes_per_second, rel=1e-3)
        assert (seen["num_parameters"], seen["parameter_bytes"]) == (ENTRIES, 8 * ENTRIES)
        assert seen["world_size"] == 3
        assert seen["crowding"] == 0, "simulated workers' own time is none"
        assert seen["coding"] == ((0.005, 8e-9),) * 2, "what coders of CPUs take beside others"


def test_measuring_takes_one_message_for_each_size_and_one_for_all_else(monkeypatch):
    """Where many workers share few cores a message takes as long as a step."""
    decided, probed = [], []
    decide, probe = Agreements.decide, link_probes._probe
    monkeypatch.setattr(
        Agreements, "decide", lambda self, name, *args: decided.append(name) or decide(self, name, *args)
    )
    monkeypatch.setattr(link_probes, "_probe", lambda bound, size: probed.append(size) or probe(bound, size))
    relaxcomm.simulate(lambda group: measured(group, (0.002,) * 3), 3, link=LINK)
    assert sorted(probed) == sorted([24] * 3 * 3 + [1 << 17] * 3), "131 KB take 87 ms"
    assert decided.count("probe") == 3 * (1 + 1)


def test_a_small_model_is_not_measured_by_large_messages(monkeypatch):
    probe, sizes = link_probes._probe, []
    monkeypatch.setattr(link_probes, "_probe", lambda bound, size: sizes.append(size) or probe(bound, size))
    fast = Link(latency_seconds=1e-6, bytes_per_second=1e11)
    relaxcomm.simulate(lambda group: measured(group, (0.002,) * 3), 3, link=fast)
    assert max(sizes) == 1 << 17


def test_a_probe_that_a_lost_packet_holds_up_is_made_again(monkeypatch):
    probe, sizes = link_probes._probe, []

    def one_is_held_up(bound, size):
        found = probe(bound, size)
        if bound.world.rank == 2 and size > 24:
            sizes.append(size)
            if len(sizes) == 1:
                return found._replace(seconds=found.seconds + 0.2)
        return found

    monkeypatch.setattr(link_probes, "_probe", one_is_held_up)
    seen = relaxcomm.simulate(lambda group: measured(group, (0.002,) * 3)[0], 3, link=LINK)
    assert [one["bytes_per_second"] for one in seen] == pytest.approx([LINK.bytes_per_second] * 3, rel=1e-3)
    assert sizes == [1 << 17] * 2


def uneven(group):
    rank = Rank(group, "auto")
    for step in range(9):
        # On the last rank steps two to seven take 3 to 8 ms: the median is 5.5, that of deviations 1.5.
        rank.seconds = 0.001 * (2 + step) if group.rank() == 2 else 0.004
        rank.train(step, step + 1)
    return engine_state(rank.engine)["measured"]


def test_how_much_steps_vary_is_measured():
    for seen in relaxcomm.simulate(uneven, 3, link=LINK):
        assert seen["step_seconds"] == pytest.approx(0.0055)
        assert seen["jitter_seconds"] == pytest.approx(
            0.0015 / statistics.NormalDist().inv_cdf(0.75), rel=1e-4
        )


@pytest.mark.parametrize(
    ("optimizer", "is_adaptive"),
    [
        (torch.optim.SGD, False),
        (torch.optim.Adam, True),
        (torch.optim.AdamW, True),
        (torch.optim.Adamax, True),
        (torch.optim.NAdam, True),
        (torch.optim.RAdam, True),
        (torch.optim.RMSprop, True),
        (torch.optim.Adagrad, True),
        (torch.optim.Adadelta, True),
    ],
)
def test_an_adaptive_optimizer_is_known_by_what_it_keeps(optimizer, is_adaptive):
    def program(group):
        rank = Rank(group, "auto", optimizer=optimizer)
        rank.train(0, 9)
        return engine_state(rank.engine)["measured"]["adaptive_optimizer"]

    assert relaxcomm.simulate(program, 3, link=LINK) == [is_adaptive] * 3


def test_workers_agree_on_it_when_one_has_taken_no_step_yet():
    """As with a GradScaler that has skipped all of them."""

    def program(group):
        kind = torch.optim.SGD if group.rank() == 1 else torch.optim.Adam
        rank = Rank(group, "auto", optimizer=kind)
        rank.train(0, 9)
        return engine_state(rank.engine)["measured"]["adaptive_optimizer"]

    assert relaxcomm.simulate(program, 3, link=LINK) == [True] * 3


@pytest.mark.parametrize("rate", [1e7, 8e7, 1e9])
def test_with_an_adaptive_optimizer_averages_are_no_rarer(rate):
    """Ten million parameters, four workers; where two periods are close the rarer costs too many steps."""
    facts = {
        "step_seconds": 0.2,
        "jitter_seconds": 0.01,
        "num_parameters": 10_000_000,
        "parameter_bytes": 40_000_000,
        "world_size": 4,
        "latency_seconds": 0.001,
        "bytes_per_second": rate,
        "crowding": 2.0,
    }
    periods = [
        period_of(least_time().choose(Measured(**facts, adaptive_optimizer=kind))[0])
        for kind in (False, True)
    ]
    assert periods == ([8, 4] if rate == 8e7 else [periods[0]] * 2)


def period_of(algorithm):
    trigger = algorithm.rules[0].trigger
    return trigger.steps if isinstance(trigger, every) else 1


FAST = {
    "step_seconds": 0.03,
    "jitter_seconds": 0.0,
    "num_parameters": 400_000,
    "parameter_bytes": 1_600_000,
    "world_size": 4,
    "latency_seconds": 1e-4,
    "bytes_per_second": 1e9,
}


def name_chosen(**facts):
    algorithm, _ = least_time().choose(Measured(**{**FAST, **facts}))
    assert isinstance(algorithm, Algorithm)
    return algorithm.name


def test_where_workers_share_cores_the_work_of_an_exchange_counts():
    assert [name_chosen(crowding=crowding) for crowding in (0.0, 1.0, 4.0)] == [
        "bsp",
        "local_sgd",
        "local_sgd",
    ]
    assert name_chosen(crowding=1.0, step_seconds=0.3) == "bsp", "beside a long step it is little"


def test_fast_coding_is_chosen_where_slow_coding_is_not():
    """Over 100 Mbit/s, where all entries take 0.2 s an exchange and 8 bits a quarter of that."""
    slow_link = {"bytes_per_second": 1.25e7, "step_seconds": 0.1}
    chosen = [
        least_time().choose(Measured(**{**FAST, **slow_link, "coding": ((seconds, 0.0),) * 2}))[0]
        for seconds in (1e-4, 10.0)
    ]
    assert [algorithm.rules[0].compressor == identity() for algorithm in chosen] == [False, True]


def test_each_bucket_is_coded_at_the_price_of_a_base():
    """As fast in one bucket as in full precision, in ten not."""
    slow_link = {"bytes_per_second": 1.25e7, "step_seconds": 0.1, "coding": ((0.02, 0.0),) * 2}
    chosen = [least_time().choose(Measured(**{**FAST, **slow_link, "num_buckets": n}))[0] for n in (1, 10)]
    assert [algorithm.rules[0].compressor == identity() for algorithm in chosen] == [False, True]


@pytest.mark.parametrize("workers", [3, 8])
def test_fewer_messages_in_turn_count_less(workers):
    """Where latency is nearly all, 1 and N - 1 messages of 8 bits win over 2 (N - 1) of full precision."""
    far = {"world_size": workers, "latency_seconds": 2 * (workers - 1) * 0.05, "bytes_per_second": 1e8}
    cheap = ((1e-4, 0.0),) * 2
    algorithm, _ = least_time().choose(Measured(**{**FAST, **far, "coding": cheap}))
    assert algorithm.rules[0].compressor != identity()


def test_gradients_of_one_bucket_hide_behind_nothing():
    """Ten milliseconds an exchange, behind a third of which the rest of a step of thirty could hide."""
    slower = {"bytes_per_second": 1.5 * 1_600_000 / 0.01}
    assert [name_chosen(num_buckets=count, **slower) for count in (1, 8)] == ["local_sgd", "bsp"]


def of_a_probe(link):
    """A rank sends twice two thirds of six elements' 24 bytes."""
    return 32 / link.bytes_per_second


def chosen(group, settings="auto", steps=STEPS):
    rank = Rank(group, settings)
    rank.train(0, steps)
    with rank.engine as engine:
        return engine.algorithm, engine.choice


def chosen_for(bytes_per_second):
    link = Link(latency_seconds=1e-5, bytes_per_second=bytes_per_second)
    found = relaxcomm.simulate(chosen, 3, link=link)
    assert len({(repr(algorithm), choice) for algorithm, choice in found}) == 1
    return found[0][0]


def bytes_a_step(algorithm):
    rule, model = algorithm.rules[0], one_tensor(ENTRIES)
    cost = exchange_cost(rule.exchange, rule.compressor, model, 8, 3, complete())
    return cost.sent_bytes / rule.trigger.facts.period_steps


def test_the_slower_the_link_the_fewer_the_bytes():
    fast, *slower = (chosen_for(rate) for rate in (1e9, 1e5, 2e4, 5e3, 2e2))
    assert fast.name == "bsp"
    assert {algorithm.name for algorithm in slower} == {"local_sgd"}
    sent = [bytes_a_step(algorithm) for algorithm in (fast, *slower)]
    assert sent == sorted(sent, reverse=True)
    assert slower[-1].rules[0].trigger.steps > slower[0].rules[0].trigger.steps > 1


def test_latency_alone_makes_exchanges_rare():
    found = relaxcomm.simulate(chosen, 3, link=Link(latency_seconds=0.05))
    assert found[0][0].name == "local_sgd"


def choices(group, algorithm):
    rank = Rank(group, algorithm)
    seen = []
    for step in range(12):
        rank.train(step, step + 1)
        seen.append(rank.engine.choice)
    rank.engine.close()
    return seen


@pytest.mark.parametrize(("algorithm", "steps"), [("auto", 7), (chosen_by(by_step_time(steps=4)), 4)])
def test_nothing_is_chosen_before_enough_steps_and_then_it_stays(algorithm, steps):
    for seen in relaxcomm.simulate(lambda group: choices(group, algorithm), 3, link=LINK):
        assert seen[: steps - 1] == [None] * (steps - 1)
        assert len(set(seen[steps - 1 :])) == 1
        assert "chose Algorithm(" in seen[-1]


def test_rank_0_says_once_what_was_chosen(capsys):
    (_, choice), *_ = relaxcomm.simulate(chosen, 3, link=LINK)
    assert choice.startswith("auto chose Algorithm(")
    assert ": a step computes 2 ms, 1.8 kB go at 16 Mbit/s; " in choice
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"relaxcomm: {choice}\n")


def averaging_reference(averages):
    """The mean after each of these numbers of steps."""
    workers = simulated_workers(3)
    history = []
    for step in range(STEPS):
        workers.update(workers.gradients(step))
        if step + 1 in averages:
            workers.parameters = workers.parameters.mean(axis=0)
        history.append(workers.parameters)
    return history


@pytest.mark.parametrize(
    ("first", "averages"),
    [
        pytest.param(4, [4, 7, 10, 13, 16, 19], id="has averaged, so the clock begins at the choice"),
        pytest.param(6, [6, 9, 12, 15, 18], id="has exchanged nothing, so what is chosen takes its place"),
    ],
)
def test_what_was_chosen_runs(first, averages):
    """Three milliseconds a step: three local steps."""
    algorithm = chosen_by(by_step_time(), period=first)

    def program(group):
        rank = Rank(group, algorithm, 0.003)
        history = list(rank.train(0, STEPS))
        rank.engine.close()
        return history

    assert_histories_agree(relaxcomm.simulate(program, 3, link=LINK), averaging_reference(averages))


FEW = error_feedback(compressor=top_k(density=0.1))


@pytest.mark.every_other("chosen", "at")
@pytest.mark.parametrize(
    "chosen",
    [
        local_sgd(steps=6),
        local_sgd(steps=6, delay=2),
        local_sgd(steps=6, compressor=quantize(bits=8, rounding="nearest"), delay=1),
        local_sgd(steps=9, compressor=FEW),
        diloco(steps=6),
    ],
)
@pytest.mark.parametrize("at", [None, 2, 4, 5])
def test_it_goes_on_as_if_it_had_run_from_the_start(chosen, at):
    """Bit for bit, with the anchor that was there before the first step, also when a run is resumed."""

    def program(group, algorithm):
        rank = Rank(group, algorithm)
        rank.train(0, at or 0)
        if at is not None:
            rank.restart()
        history = [*rank.train(at or 0, STEPS)]
        assert rank.engine.algorithm == chosen
        rank.engine.close()
        return [*history, values(rank.model)]

    rule = Rule(trigger=every(steps=6), payload=deltas(), exchange=all_reduce())
    measuring = Algorithm((rule,), name="measuring", planner=instance(algorithm=chosen))
    measured, alone = (
        relaxcomm.simulate(lambda group, one=one: program(group, one), 3, link=LINK)
        for one in (measuring, chosen)
    )
    for one, other in zip(measured, alone, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(measured[0][4], measured[1][4])
    np.testing.assert_array_equal(measured[0][-1], measured[1][-1])


@pytest.mark.parametrize("batches", [(12, 12, 9), (12, 12, 3), (0, 12, 7), (4, 4, 4)])
@pytest.mark.parametrize("chosen", [local_sgd(steps=6), local_sgd(steps=5, compressor=FEW, delay=1)])
def test_ranks_that_have_run_out_of_data_take_part_in_the_choice(chosen, batches):
    """Inside `join()`, bit for bit what is chosen does by itself."""

    def program(group, algorithm):
        rank = Rank(group, algorithm)
        with rank.engine.join():
            rank.train(0, batches[group.rank()])
        ends = values(rank.model)
        with rank.engine.join():
            rank.train(20, 20 + batches[group.rank()])
        rank.engine.close()
        return ends, values(rank.model), rank.engine.algorithm

    rule = Rule(trigger=every(steps=6), payload=deltas(), exchange=all_reduce())
    measuring = Algorithm((rule,), name="measuring", planner=instance(algorithm=chosen))
    measured, alone = (
        relaxcomm.simulate(lambda group, one=one: program(group, one), 3, link=LINK)
        for one in (measuring, chosen)
    )
    for (first, second, runs), (wanted, wanted_second, _) in zip(measured, alone, strict=True):
        assert runs == chosen
        np.testing.assert_array_equal(first, wanted)
        np.testing.assert_array_equal(second, wanted_second)


@pytest.mark.parametrize(
    ("chosen", "measuring"),
    [
        pytest.param(bsp(), deltas(), id="replicas have to be equal"),
        pytest.param(ssp(), deltas(), id="a server begins with them"),
        pytest.param(d_psgd(), deltas(), id="gossip"),
        pytest.param(diloco(steps=6), parameters(), id="there is no anchor to take over"),
        pytest.param(post_local_sgd(after_steps=9), deltas(), id="later"),
    ],
)
def test_what_could_not_have_run_begins_with_an_average(chosen, measuring):
    def program(group):
        rank, unchanged = Rank(group, algorithm), Rank(group, Algorithm((rule,)))
        rank.train(0, 4)
        before = unchanged.train(0, 4)[-1]
        return before, values(rank.model), rank.engine.algorithm

    rule = Rule(trigger=every(steps=6), payload=measuring, exchange=all_reduce())
    algorithm = Algorithm((rule,), name="measuring", planner=instance(algorithm=chosen))
    found = relaxcomm.simulate(program, 3, link=LINK)
    mean = np.mean([before for before, _, _ in found], axis=0)
    for _, after, runs in found:
        assert runs == chosen
        np.testing.assert_allclose(after, mean, rtol=1e-6, atol=1e-9)


def counted(group, planner, period):
    """Bytes, synchronisations and steps before the choice, with it, and from there on."""
    rank = Rank(group, chosen_by(planner, period), 0.003)
    broadcast, found = rank.engine.statistics["bytes_sent"], []
    for begin, end in ((0, 3), (3, 4), (4, STEPS)):
        rank.train(begin, end)
        statistics = rank.engine.statistics
        sent = statistics["bytes_sent"] - broadcast
        found.append((sent, statistics["synchronisations"], statistics["steps"]))
    rank.engine.close()
    return found


def test_bytes_are_those_of_the_chosen_algorithm():
    exchange = 2 * 2 / 3 * 8 * ENTRIES
    for before, at, after in relaxcomm.simulate(
        lambda group: counted(group, by_step_time(), 4), 3, link=LINK
    ):
        assert before == (0, 0, 3)
        assert at[1:] == (1, 4)
        assert after == (at[0] + 5 * exchange, 6, STEPS)


def test_replicas_are_averaged_at_the_choice_only_if_they_differ():
    """The rule of 6 steps has not run yet when 4 are measured."""
    equal, differing = (
        relaxcomm.simulate(lambda group, period=period: counted(group, always(), period), 3, link=LINK)[0]
        for period in (4, 6)
    )
    exchange = 2 * 2 / 3 * 8 * ENTRIES
    probes, probes_and_average = (at[0] - at[1] * exchange for _, at, _ in (equal, differing))
    assert probes_and_average - probes == exchange


@pytest.mark.parametrize("at", [1, 3, 4, 5, 6, 13])
def test_a_resumed_run_goes_on_as_the_whole_one(at):
    def program(group, restarts):
        rank = Rank(group, chosen_by(by_step_time()), 0.005)
        rank.train(0, at)
        choice = rank.engine.choice
        if restarts:
            rank.restart()
            assert rank.engine.choice == choice
        history = list(rank.train(at, STEPS))
        assert rank.engine.algorithm.rules[0].trigger == every(steps=5)
        rank.engine.close()
        return [*history, values(rank.model)]

    whole, resumed = (
        relaxcomm.simulate(lambda group, restarts=restarts: program(group, restarts), 3, link=LINK)
        for restarts in (False, True)
    )
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_run_that_goes_back_chooses_anew_where_it_had_not_chosen(at):
    def program(group, goes_back):
        rank = Rank(group, chosen_by(by_step_time()), 0.005)
        rank.train(0, at)
        saved = copy.deepcopy(rank.engine.run_state_dict())
        before = rank.engine.choice
        if goes_back:
            rank.train(at, 9)
            rank.engine.load_run_state_dict(saved)
            assert rank.engine.choice == before
        rank.train(at, STEPS)
        assert rank.engine.algorithm.rules[0].trigger == every(steps=5)
        return values(rank.model)

    returned, straight = (
        relaxcomm.simulate(lambda group, goes_back=goes_back: program(group, goes_back), 3, link=LINK)
        for goes_back in (True, False)
    )
    np.testing.assert_array_equal(returned, straight)


@pytest.mark.parametrize(
    "name", ["accumulation", "uneven_accumulation", "evaluation_between", "forward_twice"]
)
def test_passes_that_are_no_steps_are_not_counted(name):
    situation = SITUATIONS[name]

    def program(group):
        rank = Rank(group, "auto")
        seen = []
        for step in range(10):
            group.sleep(0.004)
            situation.backward(rank.model, step, group.rank(), rank.engine.no_sync)
            rank.optimizer.step()
            rank.optimizer.zero_grad()
            seen.append(rank.engine.choice)
        measured = engine_state(rank.engine)["measured"]
        rank.engine.close()
        return seen, measured["step_seconds"], values(rank.model)

    found = relaxcomm.simulate(program, 3, link=LINK)
    for seen, seconds, last in found:
        assert seen[:6] == [None] * 6
        assert seen[6] is not None
        assert seconds == pytest.approx(0.004)
        np.testing.assert_array_equal(last, found[0][2])


def test_a_step_without_a_forward_of_the_model_is_timed_like_the_others():
    situation = SITUATIONS["root_and_submodules_alternate"]

    def program(group):
        rank = Rank(group, chosen_by(by_step_time()))
        for step in range(10):
            group.sleep(0.004)
            situation.backward(rank.model, step, group.rank(), rank.engine.no_sync)
            rank.optimizer.step()
            rank.optimizer.zero_grad()
        rank.engine.close()
        return rank.engine.algorithm.rules[0].trigger

    assert relaxcomm.simulate(program, 3) == [every(steps=4)] * 3


def test_ranks_choose_together_when_one_of_them_skipped_the_last_step():
    """A GradScaler skips the fourth step on rank 1; its next forward sees that."""

    def program(group):
        model, optimizer = trainable("toy", "momentum")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
        settings = {"algorithm": chosen_by(always("bsp"))}
        world, seen = World(group.rank(), group.size(), group), []
        with world.attach(model, optimizer, settings, scaler=scaler) as engine:
            for step in range(8):
                loss = CASES["toy"].local_loss(model, step, group.rank())
                seen.append(engine.algorithm.name)
                scale = math.inf if (group.rank(), step) == (1, 3) else 1.0
                scaler.scale(loss * scale).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return seen, values(model)

    found = relaxcomm.simulate(program, 3)
    for seen, last in found:
        assert seen == ["measuring"] * 4 + ["bsp"] * 4
        np.testing.assert_array_equal(last, found[0][1])


def phased(group, first, phase, after_steps):
    settings = {"algorithm": first, "phases": [{"after_steps": after_steps, "algorithm": phase}]}
    rank = Rank(group, settings)
    seen = []
    for step in range(STEPS):
        rank.train(step, step + 1)
        seen.append((rank.engine.algorithm.name, rank.engine.choice is not None))
    rank.engine.close()
    return seen


@pytest.mark.parametrize(
    ("first", "phase", "after_steps", "expected"),
    [
        ("auto", "slowmo", 5, [("auto", False)] * 4 + [("slowmo", False)] * 16),
        ("auto", "slowmo", 11, [("auto", False)] * 6 + [("bsp", True)] * 4 + [("slowmo", False)] * 10),
        ("slowmo", "auto", 5, [("slowmo", False)] * 4 + [("auto", False)] * 7 + [("bsp", True)] * 9),
    ],
)
def test_phases_end_the_measuring_and_begin_it(capsys, first, phase, after_steps, expected):
    found = relaxcomm.simulate(lambda group: phased(group, first, phase, after_steps), 3)
    assert found == [expected] * 3
    assert capsys.readouterr().err.count("chose") == any(has_chosen for _, has_chosen in expected)


def test_a_choice_in_a_phase_is_resumed():
    def program(group):
        phases = [{"after_steps": 5, "algorithm": chosen_by(by_step_time())}]
        rank = Rank(group, {"algorithm": "bsp", "phases": phases}, 0.006)
        rank.train(0, 12)
        rank.restart()
        return rank.engine.algorithm.rules[0].trigger

    assert relaxcomm.simulate(program, 3) == [every(steps=6)] * 3


def test_one_worker_has_bsp():
    for algorithm, choice in (*in_process(alone, 1), alone(World(0, 1))):
        assert algorithm == "bsp"
        assert choice.endswith("all_reduce())): there is one worker")


def alone(world):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": "auto"}) as engine:
        for step in range(9):
            CASES["toy"].local_loss(model, step, 0).backward()
            optimizer.step()
        assert engine_state(engine)["measured"]["bytes_per_second"] == math.inf
        return engine.algorithm.name, engine.choice


@pytest.mark.parametrize(
    ("planner", "words"),
    [
        (always(""), "nothing suits 3 workers"),
        (always("local_sdg"), "did you mean 'local_sgd'"),
    ],
)
def test_what_cannot_be_chosen_is_told_on_all_ranks(planner, words):
    def program(group):
        rank = Rank(group, chosen_by(planner))
        rank.train(0, 3)
        with pytest.raises(ConfigError, match=words) as told:
            rank.train(3, 4)
        assert rank.engine.choice is None
        return str(told.value)

    assert len(set(relaxcomm.simulate(program, 3))) == 1


@pytest.mark.filterwarnings("ignore:in step 0 workers train alone")
@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (Rule(trigger=every(steps=3), payload=parameters(), exchange=all_reduce()), 4),
        (Rule(trigger=every_step(), payload=parameters(), exchange=all_reduce()), 4),
        (Rule(trigger=every(steps=4), payload=gradients(), exchange=all_reduce()), 4),
        (Rule(trigger=every(steps=4), payload=deltas(), exchange=all_reduce(), delay=1), 4),
    ],
)
def test_rules_that_disturb_the_measuring_are_refused(rule, steps):
    with pytest.raises(CompositionError, match=r"by_step_time\(\) measures 4 steps.*every\(steps=4\)"):
        Algorithm((rule,), planner=by_step_time(steps=steps))


def test_two_steps_are_too_few():
    with pytest.raises(CompositionError, match=r"measures 2 step\(s\); it takes at least 3"):
        chosen_by(by_step_time(steps=2))


def real(world):
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    with world.attach(model, optimizer, {"algorithm": "auto"}) as engine:
        for step in range(STEPS):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        choice, seen = engine.choice, engine_state(engine)["measured"]
    return choice, seen, values(model)


@pytest.mark.ranks
def test_on_gloo():
    found = on_gloo(real, 3)
    for choice, seen, last in found:
        assert (choice, seen) == found[0][:2]
        assert "chose" in choice
        assert 0 < seen["step_seconds"] < 10
        assert 0 < seen["latency_seconds"] < 1
        assert 1e5 < seen["bytes_per_second"] < 1e12
        assert 0.5 < seen["crowding"] < 100
        assert seen["num_buckets"] == 4
        np.testing.assert_array_equal(last, found[0][2])

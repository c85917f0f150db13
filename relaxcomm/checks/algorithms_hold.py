"""Checks of algorithms: that they train, keep what they declare, and can be gone on with."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor

from relaxcomm.checks.finding import expect
from relaxcomm.checks.trial_problem import Rank, Trial, excess
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import CompositionError, TopologyError
from relaxcomm.topology import hierarchical

_EPOCHS, _FALLEN = 120, 0.97  # and how much of what is left in the middle is at the end, if it is slow
_LEAST_STEPS = 200
_EXCESS = 0.15  # of the first loss above the least possible one
_ASTRAY, _SOON = 2.0, 60  # what shows, after so many epochs, that it goes the wrong way


def converges(trial: Trial) -> None:
    """The mean model nears the least loss, be it slowly, and all ranks end with the same model."""

    def program(rank: Rank) -> tuple[list[float], Tensor]:
        reached: list[float] = []
        while len(reached) < _EPOCHS / 4:
            rank.epochs(4)
            with rank.engine.averaged():
                reached.append(excess(rank.parameters))
            if reached[-1] < _EXCESS or (reached[-1] > _ASTRAY and 4 * len(reached) >= _SOON):
                break
        rank.engine.close()
        return reached, rank.parameters

    found = trial.run(program)
    reached, first = found[0]
    nears = reached[-1] < _EXCESS or reached[-1] < _FALLEN * min(1.0, reached[len(reached) // 2])
    astray = ": it goes the wrong way, or too far" * (reached[-1] > _ASTRAY)
    expect(
        nears,
        f"after {4 * len(reached)} epochs {reached[-1]:.1%} of the loss that can go is left{astray}; if its "
        "arguments are why, check it with others: --set KEY=VALUE",
    )
    same = all(torch.equal(parameters, first) for *_, parameters in found)
    expect(same, "after close() the ranks hold different models")


def replicas_are_declared(trial: Trial) -> None:
    """Ranks agree after every step, unless the rules let replicas differ, and no guard finds drift."""
    if trial.algorithm.lets_replicas_differ and not trial.algorithm.makes_replicas_equal:
        return

    found = trial.run(lambda rank: rank.epochs(4), drift_guard={"every_steps": 1})
    if trial.algorithm.lets_replicas_differ:
        return
    for step, parameters in enumerate(zip(*found, strict=True)):
        same = all(torch.equal(one, parameters[0]) for one in parameters)
        expect(same, f"the rules keep replicas equal, but they differ after step {step}")


def state_is_all(trial: Trial) -> None:
    """A run that goes on from a checkpoint does what it would have done."""

    def whole(rank: Rank) -> tuple[dict[str, Any], Tensor]:
        rank.epochs(2)
        saved = rank.save()
        rank.group.sleep(1000.0 - rank.group.time())
        return saved, rank.epochs(2)[-1]

    states = trial.run(whole)

    def second(rank: Rank) -> Tensor:
        rank.load(states[rank.group.rank()][0])
        return rank.epochs(2)[-1]

    for (_, went_on), restored in zip(states, trial.run(second), strict=True):
        off = float((went_on - restored).abs().max())
        expect(
            off < 1e-6,
            f"a run restored from its checkpoint is {off:.3g} off: state is kept elsewhere, or numbers are "
            "drawn unseeded",
        )


def another_number_goes_on(trial: Trial) -> None:
    """What a run has saved is gone on with by one worker more, or less, all with the same model."""

    def first(rank: Rank) -> dict[str, Any]:
        rank.epochs(1)
        return copy.deepcopy(rank.engine.run_state_dict())

    states = trial.run(first)

    def second(rank: Rank) -> tuple[Tensor, Tensor]:
        rank.engine.load_run_state_dict(rank.engine.carry_run_state_dicts(states))
        return rank.parameters, rank.epochs(1)[-1]

    sizes = trial.size + 1, trial.size - 1
    for size, topology in itertools.product(sizes, (trial.settings["topology"], hierarchical(sizes=1))):
        try:
            found = trial.run(second, size, topology=topology)
        except (CompositionError, TopologyError):  # a graph of as many nodes, or none with groups
            continue
        who = f"{size} workers that go on from a checkpoint of {trial.size}"
        same = all(torch.equal(begun, found[0][0]) for begun, _ in found)
        expect(same, f"{who} begin with different models")
        finite = all(bool(ended.isfinite().all()) for _, ended in found)
        expect(finite, f"{who} do not stay finite")


def it_exchanges(trial: Trial) -> None:
    """Something is exchanged, in as many steps as the rules' own clocks need, and more."""
    periods = [rule.active[0] + rule.trigger.facts.period_steps for rule in trial.algorithm.rules]
    limit = _LEAST_STEPS + 2 * max(periods)

    def program(rank: Rank) -> int:
        while rank.engine.statistics["synchronisations"] == 0 and len(rank.history) < limit:
            rank.epochs(1)
        return int(rank.engine.statistics["synchronisations"])

    expect(
        any(trial.run(program)),
        f"exchanged nothing in {limit} steps: every worker trains alone; if its arguments are "
        "why, check it with others: --set KEY=VALUE",
    )


def alone_is_enough(trial: Trial) -> None:
    """One worker alone trains, and sends nothing."""

    def program(rank: Rank) -> float:
        rank.epochs(1)
        return rank.engine.statistics["bytes_sent"]

    try:
        (sent,) = trial.run(program, size=1)
    except TopologyError:  # a graph that has more nodes
        return
    expect(sent == 0, f"a single worker sent {sent:.0f} bytes")


def algorithm_checks(algorithm: Algorithm) -> dict[str, Callable[[], None]]:
    """The checks of an algorithm, by name."""
    trial = cache(partial(Trial, algorithm))
    checks = {
        "replicas": replicas_are_declared,
        "state": state_is_all,
        "another number": another_number_goes_on,
        "exchanges": it_exchanges,
        "alone": alone_is_enough,
        "converges": converges,
    }
    return {name: wraps(run)(lambda run=run: run(trial())) for name, run in checks.items()}

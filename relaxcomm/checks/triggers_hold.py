"""Checks of triggers: each declared fact against when they fire, and what they look at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relaxcomm.checks import slots_hold
from relaxcomm.checks.compressor_trials import drawn
from relaxcomm.checks.conduct import (
    ALIKE,
    Values,
    WatchedSlots,
    checks_of,
    expect_from_start,
    expect_left,
    global_states,
    left_alone,
    slots_assigned,
)
from relaxcomm.checks.finding import Broken, expect
from relaxcomm.checks.round_trip import context
from relaxcomm.checks.world_sizes import OF, RANKS
from relaxcomm.roles import Context, Observation, Trigger, VotingTrigger
from relaxcomm.roles.returned import is_yes

_PERIODS, _LEAST_STEPS = 3, 128
_OTHERS = (1.0, 0.0), (1e-6, 1.0), (1e6, 8.0), (math.nan, 0.0)  # of gradients: sizes, how these vary
_ELSEWHERE = (
    "it keeps state in a module, a class or itself, or follows a clock, of which no run sees the same again; "
    "take what it follows from cx, or from the slots of a vote"
)


class _Counting(Context):
    """The same, but with counts of exchanges and samples, which random numbers do not follow."""

    def number(self, seed: int, *apart: int) -> int:
        return self.at(round=0).number(seed, *apart)


def _observed(
    step: int, values: Mapping[str, float], event: str | None = None, rank: int = 0, start: int = 0
) -> Context:
    """What the engine lets a trigger see, which is asked for all buckets at once."""
    return context(rank, OF, step, start=start).at(round=0, values=values, event=event)


def firing_is_declared(trigger: Trigger) -> None:
    """When it is known whether it fires, and how many steps at least lie between two firings."""
    facts = trigger.facts
    voting = isinstance(trigger, VotingTrigger)
    expect(
        voting == (facts.known == "backward"),
        f"declares to be known at {facts.known}, but {'' if voting else 'no '}workers vote",
    )
    expect(
        (facts.event is not None) == (facts.known == "event"),
        f"declares to be known at {facts.known}, and to wait for the event {facts.event!r}",
    )
    steps, generators = max(_PERIODS * facts.period_steps, _LEAST_STEPS), global_states()
    try:
        fired = list(_firings(trigger, steps))
        beside = list(zip(_firings(trigger, steps), _firings(trigger, steps), strict=True))
    except AssertionError as error:
        raise Broken(f"declares to be known at {facts.known}, but asks for more: {error}") from error
    if beside != [(one, one) for one in fired]:
        left_alone(generators)
        raise Broken(f"fires in other steps when another worker in its process is asked, too: {_ELSEWHERE}")
    follows = list(_firings(trigger, steps, counts=True)) != fired
    repeats = not follows or list(_firings(trigger, steps)) == fired
    expect(repeats, f"fires in other steps when it is asked again: {_ELSEWHERE}")
    expect(
        not follows,
        "follows cx.round or cx.samples, which are a bucket's: a trigger, asked for all buckets at once, "
        "finds 0 and 1 there in each step; count steps by cx.step - cx.start",
    )
    if not voting:
        for rank in RANKS:
            alike = list(_firings(trigger, steps, rank=rank)) == fired
            expect(alike, f"fires in other steps on another rank, though nobody votes; {ALIKE}")
        _follows_its_event(trigger, fired)
    _follows_its_clock(trigger, fired)
    if voting:
        _votes_follow_what_is_seen(trigger, fired)
        expect(
            list(_firings(trigger, steps, see=partial(_seen, scale=1024.0))) == fired,
            "votes otherwise where a GradScaler has made the gradients 1024 times as large: take "
            "observation.squared_norm, or divide observation.gradients by observation.scale",
        )


def _follows_its_clock(trigger: Trigger, fired: Sequence[bool]) -> None:
    """As many steps as declared lie between two firings, counted from the first step of its rule."""
    period = trigger.facts.period_steps
    for before, step in itertools.pairwise(step for step, fires in enumerate(fired) if fires):
        declared = f"declares at least {period} steps between two firings"
        expect(step - before >= period, f"{declared}, fires after {step - before}")
    if not trigger.facts.needs:  # which may be steps of the run, as its controller says them
        expect_from_start(lambda start: torch.tensor([*_firings(trigger, len(fired), start=start)]))


def _votes_follow_what_is_seen(trigger: Trigger, fired: list[bool]) -> None:
    """Whoever votes alike on all ranks, whatever the gradients are, follows a clock."""
    others: list[dict[str, Any]] = [{"see": partial(_any, *one)} for one in _OTHERS]
    others += [{"rank": rank} for rank in RANKS]
    try:
        alike = all(list(_firings(trigger, len(fired), **other)) == fired for other in others)
    except Exception:  # a plug-in may refuse such gradients
        return
    expect(
        not (alike and any(fired)),  # one with a threshold that nothing has passed may follow anything
        "votes the same on each rank, whatever the gradients and numbers are that it looks at, so nobody "
        'has to vote: make it a Trigger that is known at the "start", and count steps by cx.step - cx.start',
    )


def _firings(
    trigger: Trigger,
    steps: int,
    *,
    counts: bool = False,
    rank: int = 0,
    start: int = 0,
    see: Callable[[int], Observation] | None = None,
) -> Iterator[bool]:
    """Whether it fires in each step, with its event and, where it votes, after its own vote alone; as it
    sees them in a run or, to find whether it looks, with counts of exchanges and samples."""
    state = WatchedSlots(trigger.init_vote() if isinstance(trigger, VotingTrigger) else {}, repr(trigger))
    for step in range(steps):
        cx = _observed(step, Values(1.0), trigger.facts.event, rank, start)
        cx = _Counting(**vars(cx.at(round=step, samples=step + 2))) if counts else cx
        if isinstance(trigger, VotingTrigger):
            cx = cx.at(decided=is_yes(trigger.vote(cx, state, (see or _seen)(step)), "vote", trigger))
        yield is_yes(trigger.fires(cx), "fires", trigger)


def _follows_its_event(trigger: Trigger, fired: Sequence[bool]) -> None:
    event = trigger.facts.event
    for step, fires in enumerate(fired):
        other = trigger.fires(_observed(step, Values(1.0), "round" if event is None else None))
        if event is None:
            expect(other == fires, "declares to wait for no event, but follows one")
        else:
            expect(not other, f"declares to wait for {event!r}, but fires without it")
    expect(event is None or fired[0], f"declares to wait for {event!r}, but does not fire at it")


def needs_are_declared(trigger: Trigger) -> None:
    """It asks for no value but those that it needs."""
    if isinstance(trigger, VotingTrigger):
        return
    for number in (1.0, 1e9):
        values = Values(number)
        with suppress(Exception) if number > 1 else nullcontext():  # such as a table has no entry for
            for step in range(trigger.facts.period_steps):
                trigger.fires(_observed(step, values))
        missing = values.asked - trigger.facts.needs
        expect(not missing, f"looks at {sorted(missing)}, which its facts' needs do not name")


class _Watched(Observation):
    """An observation of which the names that were asked for are kept."""

    def __init__(self, gradient: Tensor, number: float | None = None, scale: float = 1.0) -> None:
        super().__init__([scale * gradient], scale)
        self.asked: set[str] = set()
        self._number = number

    def value(self, name: str, default: float | None = None) -> float:
        self.asked.add(name)
        usual = 1.0 if default is None else default
        return usual if self._number is None else self._number


def _seen(step: int, scale: float = 1.0) -> _Watched:
    """The gradients of a step: some of each size, since a threshold may have any."""
    size = 10 ** (1 - step // 16 % 8 / 2)
    return _Watched(torch.full((4,), size * (1.0 + 7 * step % 11)), scale=scale)


def _any(size: float, spread: float, step: int) -> _Watched:
    """Others, about one size, beside a number about that size."""
    scale = size * float((spread * drawn(step, 1)).exp())
    return _Watched(scale * drawn(step, 4), scale)


def votes_are_declared(trigger: Trigger) -> None:
    """A slot of those who vote changes by assignment, the gradients, which the step needs, not at all, and
    of values and of numbers that the engine takes for triggers it asks for those that it declares."""
    if not isinstance(trigger, VotingTrigger):
        expect(not trigger.facts.looks_at, f"looks at {set(trigger.facts.looks_at)}, but nobody votes")
        return
    state, values = WatchedSlots(trigger.init_vote(), repr(trigger)), Values(1.0)
    for step in range(_LEAST_STEPS):
        seen = _seen(step)
        with slots_assigned(state):
            is_yes(trigger.vote(_observed(step, values), state, seen), "vote", trigger)
        expect_left("observation.gradients", seen.gradients, _seen(step).gradients)
        missing = (seen.asked & {"replica_distance"}) - trigger.facts.looks_at
        expect(not missing, f"looks at {sorted(missing)}, which its facts' looks_at do not name")
    missing = values.asked - trigger.facts.needs
    expect(not missing, f"looks at {sorted(missing)}, which its facts' needs do not name")


trigger_checks = checks_of(
    {
        "firing": firing_is_declared,
        "needs": needs_are_declared,
        "slots": votes_are_declared,
        "carried": slots_hold.trigger_slots,
    }
)
"""The checks of a trigger, by name."""

"""Checks of outers: each declared fact against what they look at and return."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from relaxcomm.checks import slots_hold
from relaxcomm.checks.compressor_trials import drawn
from relaxcomm.checks.conduct import (
    ALIKE,
    WatchedSlots,
    checks_of,
    expect_from_start,
    expect_left,
    slots_assigned,
)
from relaxcomm.checks.finding import expect, told
from relaxcomm.checks.round_trip import bucket_of, context
from relaxcomm.checks.world_sizes import OF, RANKS
from relaxcomm.roles import Context, Outer
from relaxcomm.roles.outer import applied
from relaxcomm.roles.returned import added
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout

_NUMEL, _STEPS = 12, 4
_LAYOUT = Layout(("matrix", "vector"), (torch.Size([2, 3]), torch.Size([6])))  # some treat matrices apart
_LONG = 2000  # steps, in which averages of squares have come to stay
_MOST_DECAYED = 0.9  # of the weights is left after an exchange


class _Trial:
    """An outer with a bucket and its slots, which remembers whether it asked for the learning rate."""

    def __init__(
        self,
        outer: Outer,
        numel: int = _NUMEL,
        rank: int = 0,
        start: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._outer, self.asked, self._rank = outer, False, rank
        layout = _LAYOUT if numel == _NUMEL else None
        self._start, self.bucket = start, bucket_of(torch.ones(numel, dtype=dtype), layout)
        self.state = WatchedSlots(outer.init(self.bucket), repr(outer))

    def apply(self, result: Tensor, base: Tensor | None, step: int = 0) -> Tensor:
        """What it makes of a result."""

        def rate(bucket: Bucket) -> float:
            self.asked = True
            return 0.1

        cx: Context = context(self._rank, OF, step, self.bucket.layout, start=self._start).at(
            learning_rate=rate
        )
        if self._outer.facts.measures:
            found = self._outer.measure(cx, self.bucket, result)
            cx = cx.at(measured=added(None, found, "measure", self._outer))
        return applied(self._outer, cx, self.bucket, self.state, result, base)


def base_is_declared(outer: Outer) -> None:
    """It works without a base if it declares to need none, and only then."""
    try:
        _Trial(outer).apply(drawn(1, _NUMEL), None)
        seen, works = "works", True
    except Exception as error:  # a plug-in may raise anything
        seen, works = f"fails: {told(error)}", False
    declared = outer.facts.needs_base
    expect(works != declared, f"declares needs_base={declared}, but without a base it {seen}")


def averaging_is_declared(outer: Outer) -> None:
    """The combined result as it is, or the base moved by it; and what moves no model changes no result."""
    facts, result, base = outer.facts, drawn(1, _NUMEL), drawn(2, _NUMEL)
    for declared, what in (
        (facts.averages, "averages=True, so that the result is taken as it is"),
        (not facts.moves_model, "moves_model=False, so that the model is left alone"),
    ):
        both = declared and facts.needs_base
        expect(not both, f"declares {what}, and also needs_base=True; declare the one or the other")
    if facts.averages:
        same = torch.equal(_Trial(outer).apply(result, None), result)
        expect(same, "declares to take the result as it is, but changes it")
        same = torch.equal(_Trial(outer).apply(result, base), base - result)
        expect(same, "declares to take the result as it is, but moves the base otherwise")
    elif not facts.moves_model:
        same = torch.equal(_Trial(outer).apply(result, None), result)
        expect(same, "declares to leave the model alone, but makes something of the result")


def direction_is_declared(outer: Outer) -> None:
    """Where all workers agree the model stays, or decays, unless what is returned is a direction."""
    if outer.facts.returns_direction:
        large = _Trial(outer).apply(1e3 * drawn(1, _NUMEL), None)
        small = bool((large.abs() < 1e2).all())
        expect(small, "declares to return a direction, but its size follows the result")
        return
    stays, how = drawn(2, _NUMEL), "declare returns_direction"
    if outer.facts.needs_base:
        made = _Trial(outer).apply(torch.zeros(_NUMEL), stays)
        stays = stays * (made @ stays / (stays @ stays)).clamp(_MOST_DECAYED, 1.0)
        how = "move it by the result alone, or let all weights decay alike, by a tenth at most"
    else:
        made = _Trial(outer).apply(stays, None)
    off = float((made - stays).abs().max())
    expect(off < 1e-6, f"moves the model by {off:.3g} where all workers agree; {how}")


def rate_is_declared(outer: Outer) -> None:
    """It asks for the learning rate if it declares to need it, and only then."""
    trial = _Trial(outer)
    trial.apply(drawn(1, _NUMEL), drawn(2, _NUMEL) if outer.facts.needs_base else None)
    declared = outer.facts.needs_learning_rate
    expect(
        trial.asked == declared, f"declares needs_learning_rate={declared}, but asked for it: {trial.asked}"
    )


def momentum_is_declared(outer: Outer) -> None:
    """Steady momentum gives a direction that comes to stay; of none nothing comes, or it keeps its own."""
    if not outer.facts.needs_momentum:
        return
    gradient, beta, trial = drawn(1, _NUMEL).abs() + 1, float(getattr(outer, "beta", 0.9)), _Trial(outer)
    found = [trial.apply(gradient * (1 - beta ** (step + 1)), None, step) for step in range(_LONG)]
    apart = max(float((one - found[-1]).abs().max()) for one in found[-_STEPS:])
    expect(apart < 1e-3, f"declares to take momentum, but steady momentum makes directions {apart:.3g} apart")
    came = float(trial.apply(torch.zeros(_NUMEL), None, _LONG).abs().max())
    expect(
        came < 1e-3, f"declares to take momentum, but where there is none moves by {came:.3g} all the same"
    )


def measuring_is_declared(outer: Outer) -> None:
    """It measures results if it declares to, and only then."""
    try:
        result = drawn(1, _NUMEL)
        added(None, outer.measure(context(), bucket_of(result), result), "measure", outer)
        measures = True
    except NotImplementedError:
        measures = False
    declared = outer.facts.measures
    expect(measures == declared, f"declares measures={declared}, but its measure() says {measures}")


def one_entry_is_enough(outer: Outer) -> None:
    """A bucket of one entry, such as a scale, is moved."""
    trial = _Trial(outer, numel=1)
    for step in range(_STEPS):
        base = drawn(step + 4, _NUMEL)[:1] if outer.facts.needs_base else None
        finite = bool(trial.apply(drawn(step, _NUMEL)[:1], base, step).isfinite())
        expect(finite, "of a bucket of one entry it makes a number that is not finite")


def ranks_do_alike(outer: Outer) -> None:
    """Of the same results each rank makes the same, or replicas would part, in a late phase too."""

    def made(rank: int, start: int = 0) -> Tensor:
        trial = _Trial(outer, rank=rank, start=start)
        bases = [drawn(step + 4, _NUMEL) if outer.facts.needs_base else None for step in range(_STEPS)]
        return torch.stack([trial.apply(drawn(step, _NUMEL), base, step) for step, base in enumerate(bases)])

    first = made(0)
    expect(
        torch.equal(made(0), first),
        "makes something else of the same results when another worker in its process is asked, too: it keeps "
        f"state in a module, a class or itself, or draws unseeded; keep it in slots, and {ALIKE}",
    )
    apart = [rank for rank in RANKS if not torch.equal(made(rank), first)]
    expect(
        not apart,
        f"makes something else on the ranks {apart} of {OF} than on rank 0 of the same results and bases, so "
        f"replicas part: do on each rank the same; {ALIKE}",
    )
    expect_from_start(partial(made, 0))


def slots_are_assigned(outer: Outer) -> None:
    """A slot changes by assignment, and the base and the result, which are others', not at all."""
    _slots_are_assigned(outer, torch.float32)
    if not outer.facts.needs_base:  # which is as wide as slots are, and then so is the result
        _slots_are_assigned(outer, torch.bfloat16)


def _slots_are_assigned(outer: Outer, dtype: torch.dtype) -> None:
    trial = _Trial(outer, dtype=dtype)
    for step in range(_STEPS):
        result, base = drawn(step, _NUMEL).to(dtype), drawn(step + 4, _NUMEL)
        with slots_assigned(trial.state):
            trial.apply(result, base if outer.facts.needs_base else None, step)
        expect_left("the base", [base], [drawn(step + 4, _NUMEL)])
        expect_left("the result, which is not in cx.out,", [result], [drawn(step, _NUMEL).to(dtype)])


outer_checks = checks_of(
    {
        "base": base_is_declared,
        "averaging": averaging_is_declared,
        "direction": direction_is_declared,
        "rate": rate_is_declared,
        "momentum": momentum_is_declared,
        "measuring": measuring_is_declared,
        "one entry": one_entry_is_enough,
        "ranks": ranks_do_alike,
        "slots": slots_are_assigned,
        "carried": slots_hold.outer_slots,
    }
)
"""The checks of an outer, by name."""

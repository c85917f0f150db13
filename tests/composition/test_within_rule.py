"""Rules whose parts cannot work together are refused, with what to take instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from relaxcomm import CompositionError, Rule
from relaxcomm.plugin import Outer, frozen
from relaxcomm.primitives import (
    all_reduce,
    average,
    averaging_server,
    deltas,
    every,
    gradients,
    identity,
    momentum_correction,
    observe,
    parameters,
    power_sgd,
    quorum_average,
    relative_gradient_change,
    server,
    signs,
    slowmo,
    switch,
    while_below,
)


@frozen
class of_the_whole(Outer):
    """Looks at the whole model's result and averages."""

    facts = replace(average.facts, measures=True)

    def apply(self, cx, bucket, state, result, base):
        return result


@frozen
class measured_deltas(deltas):
    """Looks at the whole model before it is read."""

    facts = deltas().facts

    def measure(self, cx, bucket, state):
        return torch.zeros(1)


@frozen
class measured_gradients(gradients):
    """Looks at what is not there yet."""

    facts = gradients.facts
    measure = measured_deltas.measure


@frozen
class weighted_deltas(deltas):
    """With a weight behind them."""

    facts = replace(deltas().facts, extra_entries=1)


def rule(payload, exchange=None, **parts):
    return Rule(payload=payload, exchange=exchange or all_reduce(), **parts)


VOTE = relative_gradient_change(threshold=0.3)
REFUSED = {
    "observed parameters": (lambda: rule(parameters(), outer=observe()), "leaves the payload alone"),
    "observed late": (lambda: rule(gradients(), outer=observe(), delay=1), r"without delay; .*delay 1"),
    "signs of a move": (lambda: rule(deltas(), outer=signs()), r"does not reach it; use the payload gradien"),
    "measured where it is served": (
        lambda: rule(deltas(), server(staleness=1), outer=of_the_whole()),
        "leaves an outer nothing to do",
    ),
    "served by a learning rate": (
        lambda: rule(deltas(), quorum_average(), outer=slowmo(lr=1.0, momentum=0.5)),
        r"needs a worker's optimizer or the whole model; use average\(\)",
    ),
    "measured before backward ends": (
        lambda: rule(measured_gradients()),
        "has a measure.*, which nobody calls",
    ),
    "measured before it is served": (
        lambda: rule(measured_deltas(), server(staleness=1)),
        r"bucket by bucket; use the exchange all_reduce\(\)",
    ),
    "weights to a server": (lambda: rule(weighted_deltas(), server(staleness=1)), r"server.* would lose"),
    "weights to a server of rounds": (
        lambda: rule(weighted_deltas(), averaging_server(), delay="unbounded"),
        "would lose: they hold the entries of a bucket alone",
    ),
    "late gradients in some steps": (
        lambda: rule(gradients(), trigger=every(steps=4), delay=1),
        r"need the trigger every_step\(\)",
    ),
    "compressors of other rounds": (
        lambda: switch(first=identity(), then=power_sgd(matrix_rank=1), steps=5),
        "takes compressors of equal rounds",
    ),
    "below a limit by votes": (
        lambda: while_below(trigger=VOTE, value="batch_size", limit=8),
        "cannot follow",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case):
    build, words = REFUSED[case]
    with pytest.raises(CompositionError, match=words):
        build()


@pytest.mark.parametrize("place", ["first", "then"])
def test_both_of_two_compressors_look_at_the_optimizer(place):
    corrected = momentum_correction(compressor=identity(), momentum=0.9)
    coder = switch(**{"first": identity(), "then": identity(), "steps": 5, place: corrected})
    coder.check_optimizer([{"momentum": 0.0}])
    with pytest.raises(CompositionError, match="the optimizer's group 0 has momentum="):
        coder.check_optimizer([{"momentum": 0.5}])

"""Checks of controllers: each declared fact against what they look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from relaxcomm.checks.finding import Broken, checks_of, expect, told
from relaxcomm.checks.in_place import expect_left
from relaxcomm.checks.round_trip import context
from relaxcomm.checks.triggers_hold import Values
from relaxcomm.roles import Context, Controller, ExchangedBucket, MicroGradients
from relaxcomm.roles.returned import added, written

_NUMEL, _RANKS = 12, 3


def _observed(*, local: bool, micro: bool) -> ExchangedBucket:
    drawn = torch.randn(_NUMEL, generator=torch.Generator().manual_seed(1))
    gradients = MicroGradients(count=4, samples=16, squares=2.0, squared_norm=1.0)
    return ExchangedBucket(
        unit=0,
        local=drawn if local else None,
        result=0.5 * drawn,
        micro=gradients if micro else None,
        samples=16,
    )


def _decided(controller: Controller, cx: Context, seen: ExchangedBucket) -> Mapping[str, float]:
    """What it gives when two workers have seen the same."""
    total = added(None, controller.observe(cx, seen), "observe", controller)
    return controller.decide(cx, 2 * total)


def _error(controller: Controller, *, local: bool, micro: bool) -> Exception | None:
    """What it raises when it is told of an exchange and decides; None if it works."""
    cx = replace(context(size=2), values=_values(controller))
    try:
        _decided(controller, cx, _observed(local=local, micro=micro))
    except Exception as error:  # a plug-in may raise anything
        return error
    return None


def inputs_are_declared(controller: Controller) -> None:
    """It works with what it needs, and not without."""
    facts = controller.facts
    error = _error(controller, local=facts.needs_local, micro=facts.needs_micro_gradients)
    if error is not None:
        raise Broken(f"fails with all that it declares to need: {told(error)}") from error
    for name, declared, without in (
        ("needs_local", facts.needs_local, _error(controller, local=False, micro=True)),
        ("needs_micro_gradients", facts.needs_micro_gradients, _error(controller, local=True, micro=False)),
    ):
        expect(not declared or without is not None, f"declares {name}=True, but works without")


def buckets_are_left(controller: Controller) -> None:
    """What it is shown moves the model, and other controllers see it, too."""
    facts = controller.facts
    seen, before = (_observed(local=facts.needs_local, micro=facts.needs_micro_gradients) for _ in range(2))
    controller.observe(_seen_by(0, controller), seen)
    expect_left("seen.result", [seen.result], [before.result])
    if seen.local is not None and before.local is not None:
        expect_left("seen.local", [seen.local], [before.local])


def needs_are_declared(controller: Controller) -> None:
    """It asks for no value but those that it needs, and writes none but those and its `init_values`."""
    values, facts = _values(controller), controller.facts
    cx = replace(context(size=2), values=values)
    seen = _observed(local=facts.needs_local, micro=facts.needs_micro_gradients)
    written(_decided(controller, cx, seen), controller)
    missing = values.asked - facts.needs
    expect(not missing, f"looks at {sorted(missing)}, which its facts' needs do not name")


def ranks_decide_alike(controller: Controller) -> None:
    """From the same sum every rank makes the same values, and makes them again."""
    facts, decided = controller.facts, []
    seen = _observed(local=facts.needs_local, micro=facts.needs_micro_gradients)
    total = added(None, controller.observe(_seen_by(0, controller), seen), "observe", controller)
    for rank in (*range(_RANKS), 0):
        decided.append(
            dict(written(controller.decide(_seen_by(rank, controller), _RANKS * total), controller))
        )
        expect(
            decided[-1] == decided[0],
            f"decides {decided[0]} on rank 0 and {decided[-1]} on rank {rank}, of the same sum: decide from "
            "`total` and cx.values, and keep nothing in a module or a class",
        )


def _seen_by(rank: int, controller: Controller) -> Context:
    return replace(context(rank, _RANKS), values=_values(controller))


def _values(controller: Controller) -> Values:
    """Values as at its first decision: its own ones, and of others, such as the batch size, some number."""
    return Values(16.0, controller.init_values())


controller_checks = checks_of(
    {
        "inputs": inputs_are_declared,
        "buckets": buckets_are_left,
        "needs": needs_are_declared,
        "ranks": ranks_decide_alike,
    }
)
"""The checks of a controller, by name."""

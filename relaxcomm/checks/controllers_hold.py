"""Checks of controllers: each declared fact against what they look at."""

from __future__ import annotations

from collections.abc import Mapping

from relaxcomm.checks.compressor_trials import drawn
from relaxcomm.checks.conduct import Values, checks_of, expect_left
from relaxcomm.checks.finding import Broken, expect, told
from relaxcomm.checks.round_trip import context
from relaxcomm.roles import Context, Controller, ExchangedBucket, MicroGradients
from relaxcomm.roles.returned import added, written

_NUMEL, _RANKS = 12, 3


def _needed(controller: Controller, share: float = 0.5) -> ExchangedBucket:
    """A bucket with what it declares to look at."""
    facts = controller.facts
    return _observed(local=facts.needs_local, micro=facts.needs_micro_gradients, share=share)


def _observed(*, local: bool, micro: bool, share: float = 0.5) -> ExchangedBucket:
    gradients = MicroGradients(count=4, samples=16, squares=4 * share, squared_norm=1.0)
    return ExchangedBucket(
        unit=0,
        local=drawn(1, _NUMEL) if local else None,
        result=share * drawn(1, _NUMEL),
        micro=gradients if micro else None,
        samples=16,
    )


def _decided(controller: Controller, cx: Context, seen: ExchangedBucket) -> Mapping[str, float]:
    """What it gives when two workers have seen the same."""
    total = added(None, controller.observe(cx, seen), "observe", controller)
    return controller.decide(cx, 2 * total)


def _error(controller: Controller, *, local: bool, micro: bool) -> Exception | None:
    """What it raises when it is told of an exchange and decides; None if it works."""
    cx = context(size=2).at(values=_values(controller))
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
    """It leaves alone what it is shown: that moves the model, and other controllers see it, too."""
    seen, before = _needed(controller), _needed(controller)
    controller.observe(_seen_by(0, controller), seen)
    expect_left("seen.result", [seen.result], [before.result])
    if seen.local is not None and before.local is not None:
        expect_left("seen.local", [seen.local], [before.local])


def needs_are_declared(controller: Controller) -> None:
    """It asks for no value but those that it needs, and writes none but its `init_values`."""
    values = _values(controller)
    written(_decided(controller, context(size=2).at(values=values), _needed(controller)), controller)
    missing = values.asked - controller.facts.needs
    expect(not missing, f"looks at {sorted(missing)}, which its facts' needs do not name")


def ranks_decide_alike(controller: Controller) -> None:
    """From the same sum every rank makes the same values, and makes them again, whatever the sum is."""
    for share in (0.5, 0.25, 1.0):  # of the gradients in their mean: of the sums some may pass a threshold
        seen = controller.observe(_seen_by(0, controller), _needed(controller, share))
        total = _RANKS * added(None, seen, "observe", controller)
        decided: list[dict[str, float]] = []
        for rank in (*range(_RANKS), 0):
            values = written(controller.decide(_seen_by(rank, controller), total.clone()), controller)
            decided.append(dict(values))
            expect(
                decided[-1] == decided[0],
                f"decides {decided[0]} on rank 0 and {decided[-1]} on rank {rank}, of the same sum: decide "
                "from `total` and cx.values, and keep nothing in a module or a class",
            )


def _seen_by(rank: int, controller: Controller) -> Context:
    return context(rank, _RANKS).at(values=_values(controller))


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

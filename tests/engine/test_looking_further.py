"""Outers that measure the whole model, triggers that look at what was observed, patterns that stand alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import relaxcomm
from relaxcomm import Algorithm, CompositionError, ConfigError, Rule, UsageError, simulate
from relaxcomm.plugin import (
    Agreement,
    Bucket,
    Context,
    Observation,
    Outer,
    OuterFacts,
    Rate,
    State,
    TriggerFacts,
    VotingTrigger,
    frozen,
)
from relaxcomm.primitives import (
    all_reduce,
    average,
    deltas,
    every,
    gradients,
    parameters,
    relative_gradient_change,
    sgd,
)
from tests.models import SEEDING, take_step

RANKS = 3
LARGE, SMALL = 1 << 20, 64  # bytes of a bucket


@frozen
class clipped(Outer):
    """Deltas whose norm over the model is `norm` at most."""

    norm: Rate

    facts: ClassVar[OuterFacts] = replace(sgd.facts, measures=True)

    def measure(self, cx: Context, bucket: Bucket, result: Tensor) -> Tensor:
        return result.double().square().sum().view(1)

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        return base - result * (self.norm / cx.measured.sqrt()).clamp(max=1.0).to(result.dtype)


def make_model():
    with SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def train(group, config, steps=8, tell=lambda engine, rank, step, loss: None):
    """The parameters after every step, and what the engine has sent when."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    history, exchanged = [], []
    with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
        for step in range(steps):
            draw = torch.Generator().manual_seed(100 * group.rank() + step)
            loss = model(torch.randn(4, 7, generator=draw)).square().mean()
            tell(engine, group.rank(), step, loss)
            take_step(loss, optimizer)
            history.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
            exchanged.append(engine.statistics["synchronisations"])
    return history, exchanged


def runs(rule, **settings):
    algorithm = Algorithm((rule,), name="mine")
    tell = settings.pop("tell", lambda engine, rank, step, loss: None)
    config = {"algorithm": algorithm, **settings}
    return simulate(lambda group: train(group, config, tell=tell), RANKS)


@pytest.mark.parametrize("delay", [0, 2])
def test_a_clip_by_the_models_norm_does_not_depend_on_the_size_of_buckets(delay):
    rule = Rule(
        trigger=every(steps=4), payload=deltas(), exchange=all_reduce(), outer=clipped(norm=0.05), delay=delay
    )
    small, large = (runs(rule, bucket_bytes=size) for size in (SMALL, LARGE))
    start = nn.utils.parameters_to_vector(make_model().parameters()).detach()
    for (one, _), (other, _) in zip(small, large, strict=True):
        torch.testing.assert_close(torch.stack(one), torch.stack(other), rtol=0, atol=1e-6)
    if not delay:
        assert float((small[0][0][3] - start).norm()) == pytest.approx(0.05, rel=1e-4), "it was clipped"


@frozen
class deltas_and_norms(deltas):
    """With each worker's squared norm behind those of a bucket."""

    facts = replace(deltas().facts, extra_entries=1)

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        moved = super().read(cx, bucket, state, bucket.empty())
        return torch.cat([moved, moved.square().sum().view(1)])

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        return result[:-1]


@frozen
class by_norms(Outer):
    """FedExP's, without a bound: `p = anchor - mean ||d_n||^2 / ||d||^2 d`."""

    facts: ClassVar[OuterFacts] = replace(sgd.facts, measures=True)

    def measure(self, cx: Context, bucket: Bucket, result: Tensor) -> Tensor:
        return torch.stack([cx.extra.double().sum(), result.double().square().sum()])

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        each, mean = cx.measured
        return base - (each / mean).to(result.dtype) * result


def test_what_each_worker_says_of_itself_is_measured_over_all_buckets():
    local = torch.stack(
        [
            one[0]
            for one, _ in runs(Rule(trigger=every(steps=99), payload=parameters(), exchange=all_reduce()))
        ]
    )
    start = nn.utils.parameters_to_vector(make_model().parameters()).detach()
    moved = start - local
    mean = moved.mean(0)
    further = moved.square().sum(1).mean() / mean.square().sum()
    rule = Rule(payload=deltas_and_norms(), exchange=all_reduce(), outer=by_norms())
    for size in (SMALL, LARGE):
        for one, _ in runs(rule, bucket_bytes=size):
            torch.testing.assert_close(one[0], start - further * mean, rtol=1e-5, atol=1e-6)


def test_every_rule_measures_what_it_covers():
    """Two rules that are due together do not share a sum."""
    parts = [
        Rule(
            trigger=every(steps=4),
            payload=deltas(),
            exchange=all_reduce(),
            outer=clipped(norm=0.05),
            select=pattern,
        )
        for pattern in ("0.*", "2.*")
    ]
    config = {"algorithm": Algorithm(tuple(parts), name="mine"), "bucket_bytes": SMALL}
    (history, _), *_ = simulate(lambda group: train(group, config), RANKS)
    moved = history[3] - nn.utils.parameters_to_vector(make_model().parameters()).detach()
    for part in (moved[:40], moved[40:]):
        assert float(part.norm()) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"payload": gradients(), "exchange": all_reduce()}, "clip what is in .grad after backward"),
        (
            {"payload": deltas(), "exchange": all_reduce(), "trigger": every(steps=4), "delay": "unbounded"},
            "each bucket is applied when it arrives",
        ),
    ],
)
def test_where_the_whole_result_is_never_there_measuring_is_refused(parts, said):
    @frozen
    class measuring(Outer):
        facts: ClassVar[OuterFacts] = replace(average.facts, measures=True)

        def apply(self, cx, bucket, state, result, base):
            return result

    with pytest.raises(CompositionError, match=said):
        Rule(**parts, outer=measuring())


@frozen
class above(VotingTrigger):
    """Exchange where a number is above a level on some worker."""

    level: float
    name: str = "loss"
    default: float | None = None
    agree: Agreement = "any"

    facts: ClassVar[TriggerFacts] = relative_gradient_change.facts

    def vote(self, cx: Context, state: State, observation: Observation) -> bool:
        return observation.value(self.name, self.default) > self.level


@frozen
class when_far(above):
    """The same of the distance between replicas, which the engine takes for it."""

    facts: ClassVar[TriggerFacts] = replace(above.facts, looks_at=frozenset({"replica_distance"}))

    def vote(self, cx: Context, state: State, observation: Observation) -> bool:
        return cx.step == 1 or observation.value("replica_distance", 0.0) > self.level


def rule_with(trigger):
    return Rule(trigger=trigger, payload=parameters(), exchange=all_reduce())


def test_a_trigger_sees_the_loss_of_this_step():
    def tell(engine, rank, step, loss):
        engine.observe(loss=torch.tensor(2.0 if (rank, step) in {(1, 2), (0, 5)} else 0.5))

    for _, exchanged in runs(rule_with(above(level=1.0)), tell=tell):
        assert exchanged == [0, 0, 1, 1, 1, 2, 2, 2]


def test_a_trigger_sees_the_distance_of_replicas_without_metrics():
    for level, expected in ((1e9, [0, 1, 1, 1, 1, 1, 1, 1]), (0.0, [0, 1, 2, 3, 4, 5, 6, 7])):
        for _, exchanged in runs(rule_with(when_far(level=level))):
            assert exchanged == expected


def test_what_nobody_has_observed_is_refused_on_every_rank():
    def rank(group):
        with pytest.raises(UsageError, match="looks at 'loss', of which nothing was observed") as caught:
            train(group, {"algorithm": Algorithm((rule_with(above(level=1.0)),), name="mine")})
        return str(caught.value)

    (same,) = set(simulate(rank, RANKS))
    assert same.endswith("; call engine.observe(loss=…) before each backward")


def test_a_default_stands_in_until_something_is_observed():
    for _, exchanged in runs(rule_with(above(level=1.0, default=2.0))):
        assert exchanged == list(range(1, 9))


def test_observed_values_are_read_when_they_are_asked_for():
    latest: Mapping[str, float | Tensor] = {"loss": torch.tensor(1.5), "count": 3}
    seen = Observation([], 1.0, latest)
    assert (seen.value("loss"), seen.value("count")) == (1.5, 3.0)
    with pytest.raises(UsageError, match="known from the first exchange on, so give a default"):
        seen.value("replica_distance")


def test_a_pattern_may_stand_alone_in_python_too():
    alone, listed, several = (
        Rule(payload=gradients(), exchange=all_reduce(), select=select)
        for select in ("head.*", ["head.*"], ["a", "b"])
    )
    assert alone == listed
    assert alone.covers("head.weight")
    assert not alone.covers("body.weight")
    assert several.select == ("a", "b")
    with pytest.raises(ConfigError, match="select"):
        Rule(payload=gradients(), exchange=all_reduce(), select=5)

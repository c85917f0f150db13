"""Where a payload's base goes, what is left of gradients, and what an outer does where nothing has moved."""

from dataclasses import replace

import pytest

from relaxcomm import Algorithm, Rule
from relaxcomm.checks import algorithms_hold
from relaxcomm.checks.finding import Broken
from relaxcomm.plugin import frozen
from relaxcomm.primitives import all_reduce, deltas, every, gradients, sgd
from tests.checks.test_liars import found, liar


def moved_at_rest(how):
    """An outer that does something to the base besides."""

    def apply(self, cx, bucket, state, result, base):
        return how(base) - result

    return liar(sgd(lr=1.0), {}, apply=apply)


def test_weights_may_decay():
    assert found(moved_at_rest(lambda base: base * (1 - 1e-3)), "direction") is None
    for how in (lambda base: base * 1.01, lambda base: base / 2, lambda base: base - 0.01 * base.sign()):
        said = found(moved_at_rest(how), "direction")
        assert "move it by the result alone, or let all weights decay alike, by a tenth at most" in said


@frozen
class local_momentum(gradients):
    """The momentum of each worker's own gradients."""

    facts = replace(gradients().facts, is_momentum=True, slots={"velocity": "share"})

    def init(self, bucket):
        return {"velocity": bucket.zeros()}

    def read(self, cx, bucket, state, out):
        gradient = out if cx.gradient_scale is None else out / cx.gradient_scale
        state["velocity"] = 0.5 * state["velocity"] + gradient
        return out.copy_(state["velocity"])


def test_a_momentum_of_each_worker_is_told_what_it_is():
    assert found(local_momentum(), "momentum") is None
    said = found(liar(local_momentum(), {"is_momentum": False}), "momentum")
    assert said == (
        "of a gradient of 0 it reads something of earlier gradients or results: declare is_momentum=True"
    )


@pytest.mark.parametrize(
    ("write", "check", "said"),
    [
        (lambda self, cx, bucket, state, value, snapshot: bucket.scatter(value), "base", "its base stays"),
        (
            lambda self, cx, bucket, state, value, snapshot: state.update(anchor=bucket.copy()),
            "carried",
            "all ranks hold the same 'anchor', but they differ",
        ),
    ],
    ids=["that stays", "of each rank"],
)
def test_a_base_that_does_not_go_along(write, check, said):
    assert found(deltas(), check) is None
    assert said in found(liar(deltas(), {}, write=write), check)


def test_entries_that_differ_with_a_scale_are_shown():
    def read(self, cx, bucket, state, out):
        out[:3] = 0
        return out

    said = found(liar(gradients(), {}, read=read), "gradient scale")
    assert "reads 3 of a gradient of 3, but 3072 where a GradScaler made it 3072" in said


@frozen
class backwards(sgd):
    """Adds what it should take away."""

    facts = sgd.facts

    def apply(self, cx, bucket, state, result, base):
        return base + self.lr * result


def test_what_goes_the_wrong_way_is_told_so_soon(monkeypatch):
    monkeypatch.setattr(algorithms_hold, "_SOON", 8)
    outer = backwards(lr=1.0)
    rule = Rule(trigger=every(steps=4), payload=deltas(), exchange=all_reduce(), outer=outer)
    with pytest.raises(Broken, match=r"^after (8|12) epochs .* is left: it goes the wrong way, or too far"):
        algorithms_hold.algorithm_checks(Algorithm((rule,), name="backwards"))["converges"]()

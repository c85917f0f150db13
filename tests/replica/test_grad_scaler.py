"""A GradScaler that attach was not given would pair one rank's exchanges with others of its peers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm.replica.replica import Replica
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.testing import PretendGpu
from tests.engine.harness import World, in_process, on_gloo
from tests.models import CASES
from tests.ranks import RankError

LOCAL = {"name": "local_sgd", "steps": 2}
SKIPPING = 1


class Careful(torch.amp.GradScaler):
    """Somebody's own scaler, which wraps the one method that calls the optimizer."""

    def _maybe_opt_step(self, optimizer, *args, **kwargs):
        return super()._maybe_opt_step(optimizer, *args, **kwargs)


def scaler_of(kind: str) -> torch.amp.GradScaler:
    made = Careful if kind == "own" else torch.amp.GradScaler
    return made("cpu", init_scale=1024.0, growth_interval=10**6, enabled=kind != "disabled")


def optimizer_of(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=kind == "fused" or None)
    if kind == "scheduled":  # wraps optimizer.step
        torch.optim.lr_scheduler.ConstantLR(optimizer)
    return optimizer


def train(world: World, algorithm, kind: str, skipped: tuple[int, ...], steps: int = 6, given=None) -> str:
    """Train with a scaler that is not passed; rank 1's gradients overflow in the skipped steps."""
    case = CASES["toy"]
    model = case.model()
    optimizer, scaler = optimizer_of(model, kind), scaler_of(kind)
    options = {} if given is None else {"scaler": scaler if given == "same" else scaler_of("plain")}
    with world.attach(model, optimizer, {"algorithm": algorithm}, **options):
        for step in range(steps):
            loss = case.local_loss(model, step, world.rank)
            if world.rank == SKIPPING and step in skipped:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return "success"


def outcome(world: World, *args) -> str:
    try:
        return train(world, *args)
    except relaxcomm.RelaxcommError as error:
        return f"{type(error).__name__}: {error}"


def assert_told(found: list[str]) -> None:
    """Every rank ends with what to do, its own error or that of the peer it waits for.

    In one process peers learn only that they wait for ever, as the others here return what they were told.
    """
    assert any(text.startswith("UsageError: ") for text in found), found
    for text in found:
        assert text.startswith(
            ("UsageError: ", "CommunicationError: ", "RankLostError: ", "DeadlockError: ")
        ), found
        waits = text.startswith("DeadlockError: ")
        assert waits or "attach(model, optimizer, config, scaler=scaler)" in text, found


@pytest.mark.parametrize("kind", ["plain", "own", "fused", "scheduled"])
@pytest.mark.parametrize("algorithm", ["bsp", LOCAL, "ad_psgd", "ssp"], ids=str)
def test_the_first_step_is_refused(algorithm, kind):
    assert_told(in_process(outcome, 3, algorithm, kind, ()))


@pytest.mark.parametrize("skipped", [(0,), (1,), tuple(range(6))], ids=["first", "second", "all"])
@pytest.mark.parametrize("algorithm", [LOCAL, {"name": "diloco", "steps": 4}], ids=str)
def test_a_step_that_one_rank_skips(algorithm, skipped):
    assert_told(in_process(outcome, 3, algorithm, "plain", skipped))


@pytest.mark.ranks
@pytest.mark.parametrize("skipped", [(0,), tuple(range(6))], ids=["first", "all"])
def test_on_gloo_all_ranks_end_and_none_with_success(skipped):
    with pytest.raises(RankError) as caught:
        on_gloo(train, 3, LOCAL, "plain", skipped)
    assert caught.value.errors.keys() == {0, 1, 2}
    assert_told([f"{kind}: {text}" for kind, text in caught.value.errors.values()])


def test_another_scaler_than_the_one_that_was_given():
    found = in_process(outcome, 2, LOCAL, "plain", (), 6, "another")
    assert_told(found)
    assert any("another one" in text for text in found)


@pytest.mark.parametrize(("kind", "given"), [("disabled", None), ("plain", "same"), ("fused", "same")])
def test_what_is_right_goes_on(kind, given):
    assert in_process(outcome, 2, LOCAL, kind, (), 6, given) == ["success"] * 2


def test_a_scaler_of_another_model_does_not_matter():
    """It steps its own optimizer, inside which another model's is stepped by nobody."""

    def rank(world: World) -> str:
        other = nn.Linear(2, 1)
        scaler, own = scaler_of("plain"), torch.optim.SGD(other.parameters(), lr=0.1)
        case = CASES["toy"]
        model = case.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, {"algorithm": LOCAL}):
            for step in range(4):
                scaler.scale(other(torch.ones(1, 2)).sum()).backward()
                scaler.step(own)
                scaler.update()
                case.local_loss(model, step, world.rank).backward()
                optimizer.step()
        return "success"

    assert in_process(rank, 2) == ["success"] * 2


def test_what_is_left_of_the_scale_is_known_without_a_wait():
    """A fused optimizer unscales by itself, in its step; the other's gradients are unscaled by now."""
    with PretendGpu() as gpu:
        model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)).to("cuda")
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        replica = Replica(model, optimizers, scaler, bucket_bytes=1 << 20)
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        replica.scale.remember()
        bucket, found = Bucket(0, replica.parameters), []
        for unscaled in (None, *reversed(optimizers)):
            if unscaled is not None:
                scaler.unscale_(unscaled)
            gpu.work.clear()
            found.append(replica.scale.left(bucket))
            assert gpu.work.waits == []
        everything, some, nothing = found
        assert (everything.tolist(), some.tolist(), nothing) == (8.0, [1.0, 1.0, *[8.0] * 6], None)

"""A slot may be assigned what a primitive was given: what others write into later is kept as a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from relaxcomm import Algorithm, Rule, attach, simulate
from relaxcomm.plugin import Compressor, Dense, Outer, Payload, frozen
from relaxcomm.primitives import (
    all_reduce,
    average,
    chain,
    choco_gossip,
    deltas,
    error_feedback,
    gradients,
    identity,
    momentum_correction,
    parameters,
    random_k,
    scatter_gather,
    sgd,
)


def as_given(tensor: Tensor) -> Tensor:
    return tensor


@frozen
class looking_ahead(Outer):
    """Keeps the result as it is, or a copy: either way the next step must find what it was."""

    facts = replace(average.facts, averages=False, slots={"last": "equal"})
    kept: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(as_given)

    def init(self, bucket):
        return {"last": bucket.zeros()}

    def apply(self, cx, bucket, state, result, base):
        last = state["last"]
        state["last"] = self.kept(result)
        return result + 0.5 * (result - last)


@frozen
class returning(Outer):
    """Keeps what it returns, into which the engine writes where a parameter is frozen."""

    facts = replace(sgd.facts, slots={"last": "equal"})
    kept = staticmethod(as_given)

    def init(self, bucket):
        return {"last": bucket.copy()}

    def apply(self, cx, bucket, state, result, base):
        moved = base - 0.5 * result + 0.1 * (base - state["last"]) - 0.01
        state["last"] = self.kept(moved)
        return moved


@frozen
class with_momentum(looking_ahead):
    """Keeps what it returns, which a GradScaler's scale is multiplied into."""

    facts = looking_ahead.facts

    def apply(self, cx, bucket, state, result, base):
        moved = 0.5 * state["last"] + result
        state["last"] = self.kept(moved)
        return moved


@frozen
class reading_ahead(Payload):
    facts = replace(gradients.facts, is_move=True, slots={"last": "share", "mean": "equal"})
    kept = staticmethod(as_given)

    def init(self, bucket):
        return {"last": bucket.zeros(), "mean": bucket.zeros()}

    def read(self, cx, bucket, state, out):
        last, state["last"] = state["last"], self.kept(out)
        return out + 0.25 * (out - last) + 0.1 * state["mean"]

    def write(self, cx, bucket, state, value, snapshot):
        state["mean"] = self.kept(value)


@frozen
class reading_parameters(parameters):
    """Keeps the parameters themselves, of a bucket of one tensor."""

    facts = replace(parameters.facts, is_model=False, slots={"last": "share"})
    kept = staticmethod(as_given)

    def init(self, bucket):
        return {"last": bucket.zeros()}

    def read(self, cx, bucket, state, out):
        last, state["last"] = state["last"], self.kept(bucket.tensors[0].flatten())
        return bucket.gather(out).add_(last, alpha=0.1)


@frozen
class coding_ahead(Compressor):
    kept = staticmethod(as_given)
    facts = replace(
        identity.facts,
        scope="bucket",
        linear=False,
        unbiased=False,
        keeps_finite=False,
        slots={"last": "share"},
    )

    def init(self, bucket):
        return {"last": bucket.zeros()}

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        values = 0.5 * tensor + 0.25 * state["last"] if state["last"].any() else tensor
        state["last"], sent = self.kept(tensor), values.clone()
        parts = yield Dense(values)
        return sum(weight * message.tensor for weight, message in parts), sent


def copying(cls):
    """The same primitive, which clones what it keeps."""
    return frozen(type(cls.__name__, (cls,), {"kept": staticmethod(torch.clone), "facts": cls.facts}))


def trained(rule, *, freezes: bool = False, scales: bool = False) -> Tensor:
    """The parameters of each of three ranks after each of some steps, in two buckets."""

    def rank(group):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 3, bias=False), torch.nn.Linear(3, 2, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        algorithm = {"algorithm": Algorithm((rule,)), "bucket_bytes": 24}
        generator, seen = torch.Generator().manual_seed(group.rank()), []
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scales)
        with attach(model, optimizer, algorithm, process_group=group, scaler=scaler if scales else None):
            for step in range(6):
                model[0].requires_grad_(not (freezes and step in (2, 3)))
                scaler.scale(model(torch.randn(4, 5, generator=generator)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                seen.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        return torch.stack(seen)

    return torch.stack(simulate(rank, 3))


CASES = {
    "outer": lambda m: Rule(payload=gradients(), exchange=all_reduce(), outer=m(looking_ahead)()),
    "payload": lambda m: Rule(payload=m(reading_ahead)(), exchange=all_reduce()),
    "parameters": lambda m: Rule(payload=m(reading_parameters)(), exchange=all_reduce()),
    "compressor": lambda m: Rule(payload=gradients(), compressor=m(coding_ahead)(), exchange=all_reduce()),
    "parts": lambda m: Rule(
        payload=deltas(), outer=sgd(lr=1.0), compressor=m(coding_ahead)(), exchange=scatter_gather()
    ),
    "error feedback": lambda m: Rule(
        payload=gradients(), compressor=error_feedback(m(coding_ahead)()), exchange=all_reduce()
    ),
    "momentum correction": lambda m: Rule(
        payload=gradients(), compressor=momentum_correction(m(coding_ahead)()), exchange=all_reduce()
    ),
    "chain": lambda m: Rule(
        payload=gradients(),
        compressor=error_feedback(chain((random_k(density=0.5), m(coding_ahead)()))),
        exchange=all_reduce(),
    ),
    "public copies": lambda m: Rule(
        payload=parameters(), compressor=m(coding_ahead)(), exchange=choco_gossip(gamma=0.5)
    ),
}


@pytest.mark.filterwarnings("ignore:coding_ahead.. loses a part")
@pytest.mark.parametrize("case", CASES)
def test_what_was_lent_is_kept_as_it_was(case):
    assert torch.equal(trained(CASES[case](as_given)), trained(CASES[case](copying)))


def test_what_was_returned_is_kept_as_it_was():
    rules = (Rule(payload=deltas(), exchange=all_reduce(), outer=m(returning)()) for m in (as_given, copying))
    assert torch.equal(*(trained(rule, freezes=True) for rule in rules))


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_what_was_returned_for_gradients_is_kept_unscaled(delay):
    rules = (
        Rule(payload=gradients(), exchange=all_reduce(), outer=m(with_momentum)(), delay=delay)
        for m in (as_given, copying)
    )
    assert torch.equal(*(trained(rule, scales=True) for rule in rules))

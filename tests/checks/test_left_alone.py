"""What a primitive is shown stays as it is, and what it keeps lies in slots, also where few would notice."""

import itertools
from dataclasses import replace
from functools import cached_property, partial
from typing import ClassVar

import pytest
import torch

from relaxcomm.checks.conduct import attributes, nothing_is_added
from relaxcomm.checks.finding import attempt
from relaxcomm.plugin import (
    AllGather,
    Compressor,
    Dense,
    Trigger,
    TriggerFacts,
    VotingTrigger,
    finish,
    frozen,
)
from relaxcomm.primitives import all_gather, error_feedback, every, identity, norm_test, random_k, top_k
from tests.checks.test_liars import found, liar


@frozen
class on_budget(VotingTrigger):
    """Where the sum of squared gradients since the last yes passes a budget, kept as `keep` does."""

    budget: float = 1.0
    agree: str = "any"

    facts: ClassVar[TriggerFacts] = TriggerFacts(
        known="backward",
        event=None,
        period_steps=1,
        needs=frozenset(),
        looks_at=frozenset(),
        slots={"spent": "mean"},
    )

    def init_vote(self):
        return {"spent": torch.zeros((), dtype=torch.float64)}

    def spent(self, state):
        return float(state["spent"])

    def keep(self, state, spent):
        state["spent"] = torch.tensor(spent, dtype=torch.float64)

    def vote(self, cx, state, observation):
        spent = self.spent(state) + observation.squared_norm
        yes = spent > self.budget
        self.keep(state, 0.0 if yes else spent)
        return yes


ON_ITSELF = {
    "spent": lambda self, state: getattr(self, "kept", 0.0),
    "keep": lambda self, state, spent: object.__setattr__(self, "kept", spent),
}


@pytest.mark.parametrize("budget", [0.1, 1.0, 300.0])
def test_a_budget_of_any_size(budget):
    honest = on_budget(budget=budget)
    assert [found(honest, check) for check in ("firing", "slots")] == [None, None]
    assert "module, a class or itself" in found(liar(honest, {}, **ON_ITSELF), "firing")
    in_place = liar(honest, {}, keep=lambda self, state, spent: state["spent"].fill_(spent))
    assert "writes into its slots ['spent'] in place" in found(in_place, "slots")


def test_the_second_of_two_workers_may_be_the_one_who_is_wrong():
    asked = []

    def fires(self, cx):
        asked.append(cx.step)
        return len(asked) < 2 or asked[-2] != asked[-1]  # the first who asks in a step gets it

    assert "keeps state" in found(liar(every(steps=1), {}, fires=fires), "firing")


def test_gradients_are_only_looked_at():
    def vote(self, cx, state, observation):
        yes = on_budget.vote(self, cx, state, observation)
        for gradient in observation.gradients:
            gradient.zero_()
        return yes

    said = found(liar(on_budget(), {}, vote=vote), "slots")
    assert said.startswith("writes into observation.gradients in place, which cannot be taken back")


@pytest.mark.parametrize("what", ["result", "local"])
def test_an_exchanged_bucket_is_only_looked_at(what):
    def observe(self, cx, seen):
        numbers = norm_test.observe(self, cx, seen)
        getattr(seen, what).zero_()
        return numbers

    honest = norm_test(rule=0, tolerance=0.5)
    assert found(honest, "buckets") is None
    assert f"writes into seen.{what} in place" in found(liar(honest, {}, observe=observe), "buckets")


@pytest.mark.parametrize("coder", [identity(), error_feedback(compressor=top_k(density=0.1))], ids=repr)
def test_an_encoded_tensor_is_only_read(coder):
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        return (yield from type(coder).encode_decode(self, cx, tensor.mul_(2), state, keep_sent=keep_sent))

    assert found(coder, "slots") is None
    said = found(liar(coder, {}, encode_decode=encode_decode), "slots")
    assert said.startswith("writes into the tensor that it encodes (600 entries of torch.float32, before")


def first_matrix(cx, tensor):
    if cx.layout.shapes[0] == (19, 15):
        tensor[:300].mul_(2)


def in_bfloat16(cx, tensor):
    if tensor.dtype == torch.bfloat16:
        tensor.mul_(2)


@pytest.mark.parametrize(
    ("writes", "asked", "dtype"),
    [(first_matrix, True, "float32"), (first_matrix, False, "float32"), (in_bfloat16, True, "bfloat16")],
)
def test_matrices_and_short_types_are_only_read(writes, asked, dtype):
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        if keep_sent == asked:
            writes(cx, tensor)
        return (yield from identity().encode_decode(cx, tensor, state, keep_sent=keep_sent))

    said = found(liar(identity(), {}, encode_decode=encode_decode), "slots")
    where = f"(tensors of [19, 15] and [4, 5, 6] and [195] of torch.{dtype}, before message 1)"
    assert f"writes into the tensor that it encodes {where} in place" in said


def test_between_two_rounds_an_encoded_tensor_is_only_read():
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        sent = tensor.clone()
        parts = yield Dense(tensor.clone())
        tensor.zero_()
        yield Dense(sent.clone())
        return sum(weight * part.tensor for weight, part in parts), sent

    said = found(liar(identity(), {"rounds": 2}, encode_decode=encode_decode), "slots")
    assert "(600 entries of torch.float32, before message 2) in place" in said


@pytest.mark.parametrize("is_free", [True, False])
def test_memory_that_is_free_may_be_written_into(is_free):
    """The tensor's own, when its message has come back and no wrapper takes from it what was sent."""

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        sent = tensor.clone()
        parts = yield Dense(sent)
        result = sum(2 * weight * part.tensor for weight, part in parts)
        return (result if is_free and keep_sent else tensor.copy_(result)), sent

    said = found(liar(identity(), {}, encode_decode=encode_decode), "slots")
    assert said is None if is_free else "(600 entries of torch.float32, with keep_sent=True) in place" in said


class in_dense(Compressor):
    """What `made` makes of a tensor is sent."""

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        sent = self.made(cx, tensor)
        parts = yield Dense(sent.clone())
        return sum(weight * part.tensor for weight, part in parts), sent

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


FORGOTTEN: dict[int, torch.Tensor] = {}


@frozen
class adds_the_last(in_dense):
    facts = replace(identity.facts, memory="leaky", linear=False, unbiased=False)

    def made(self, cx, tensor):
        last = FORGOTTEN.get(tensor.numel(), torch.zeros_like(tensor))
        FORGOTTEN[tensor.numel()] = tensor
        return tensor + last.to(tensor.dtype)


@frozen
class drops_anything(in_dense):
    facts = replace(identity.facts)

    def made(self, cx, tensor):
        return 2 * tensor * (torch.rand(tensor.shape) < 0.5)


def test_what_is_kept_in_a_module_or_drawn_unseeded_has_nothing_to_do_with_keep_sent():
    FORGOTTEN.clear()
    said = found(adds_the_last(), "messages")
    assert "codes the same beside it: it keeps state in a module, a class or itself; keep it in slots" in said
    said = found(drops_anything(), "messages")
    assert said.startswith("seeds the global generator of torch, or draws from it")
    assert found(random_k(density=0.5), "messages") is None


@frozen
class looks_up(Trigger):
    """Makes what follows from its arguments once."""

    period: int = 4
    facts: ClassVar[TriggerFacts] = every(steps=4).facts

    @cached_property
    def table(self):
        return [step % self.period == 0 for step in range(self.period)]

    def fires(self, cx):
        return self.table[cx.step % self.period]


def test_cached_properties_are_no_state():
    honest, forgetful = looks_up(), liar(on_budget(), {}, **ON_ITSELF)
    for one in (honest, forgetful):
        before = attributes(one)
        found(one, "firing")
        fault = attempt("it", "attributes", partial(nothing_is_added, one, before), 60).fault
        if one is honest:
            assert "table" in vars(honest)
            assert fault is None
        else:
            assert fault.startswith("keeps ['kept'] in itself")


@pytest.mark.parametrize("after", [100, 400])
def test_a_clock_is_not_taken_for_counts(after):
    """Be it that it strikes while a worker is asked beside another one, or later on."""
    asked = itertools.count()

    def vote(self, cx, state, observation):
        return next(asked) > after

    said = found(liar(on_budget(), {}, vote=vote), "firing")
    assert said.startswith("fires in other steps when")
    assert "or follows a clock, of which no run sees the same again" in said


@pytest.mark.parametrize("rank", [1, 2, 3, 7])
def test_ranks_of_a_larger_world_fire_alike(rank):
    def fires(self, cx):
        return cx.membership.rank != rank and every.fires(self, cx)

    said = found(liar(every(steps=4), {}, fires=fires), "firing")
    assert said.startswith("fires in other steps on another rank, though nobody votes")
    assert "where seed is a whole number: the hash of text is another one in each process" in said


@pytest.mark.parametrize("operations", [1, 2])
def test_every_exchange_sends_as_much(operations):
    """Twice in every other step, by two operations or by one."""

    def run(self, cx, tensor, compressor, state):
        coding = compressor.encode_decode(cx, tensor, state, keep_sent=False)
        message = next(coding)
        packed, again = message.pack(), cx.step % 2
        if again and operations == 2:
            yield AllGather(packed)
        rows = yield AllGather(packed.repeat(2) if again and operations == 1 else packed)
        parts = [(1 / len(rows), message.unpack(row[: len(packed)])) for row in rows]
        return finish(coding, parts)[0]

    said = found(liar(all_gather(), {}, run=run), "traffic")
    wanted = {
        1: "declares 2400 bytes for 600 entries, sent 3600 on 2 ranks",
        2: "declares the operations AllGather, took 2 AllGather or AllGather on 2 ranks",
    }
    assert wanted[operations] in said

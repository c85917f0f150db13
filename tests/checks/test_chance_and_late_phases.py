"""What no run sees again, on any rank; late phases, matrices, short residuals, scaled votes."""

import builtins
import cProfile
import gc
import os
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from relaxcomm.plugin import Dense, Outer, Sparse, frozen
from relaxcomm.primitives import (
    all_reduce,
    every,
    gossip,
    gradients,
    identity,
    random_k,
    server,
    sgd,
    terngrad,
)
from tests.checks.test_left_alone import on_budget
from tests.checks.test_liars import checks_of, found, liar
from tests.checks.test_overlooked_cases import largest

ASKS = "asks a clock of the machine, "


def first_complaint(primitive):
    faults = (found(primitive, check) for check in checks_of(primitive))
    return next(filter(None, faults), None)


def asks_on(rank, method):
    """The same method, before which one rank asks a clock."""

    def asking(self, cx, *given, **named):
        if cx.membership.rank == rank:
            time.perf_counter()
        return method(self, cx, *given, **named)

    return asking


@pytest.mark.parametrize("exchange", [all_reduce(), gossip(), server(staleness=0)], ids=repr)
def test_an_exchange_asks_no_clock(exchange):
    said = found(liar(exchange, {}, run=asks_on(1, type(exchange).run)), "results")
    assert said.startswith(f"{ASKS}perf_counter(), of which no run sees the same again")


def test_no_rank_asks_a_clock():
    coder = liar(identity(), {}, encode_decode=asks_on(1, identity.encode_decode))
    outer = liar(sgd(lr=0.5), {}, apply=asks_on(1, sgd.apply))
    assert [found(one, "ranks").startswith(ASKS) for one in (coder, outer)] == [True, True]


def test_threads_of_others_are_not_taken_for_the_plugin():
    done = threading.Event()
    there = {"__name__": "board", "done": done}
    exec("def beat():\n    while not done.wait(0.001):\n        hash('beat')", there)
    beating = threading.Thread(target=there["beat"])
    beating.start()
    try:
        assert found(gradients(), "slots") is None
    finally:
        done.set()
        beating.join()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cProfile takes no thread's profile function there")
def test_what_profiles_threads_is_left_as_it_was():
    def begin(*event):
        cProfile.Profile().enable()

    before = builtins.hash, gc.isenabled()
    threading.setprofile(begin)
    try:
        assert found(gradients(), "slots") is None
        assert (threading.getprofile(), builtins.hash, gc.isenabled()) == (begin, *before)
    finally:
        threading.setprofile(None)


def test_slots_are_made_without_a_clock():
    def init(self, bucket):
        return {"begun": torch.full((1,), time.time())}

    for honest in (identity(), sgd(lr=0.5), gradients()):
        lie = liar(honest, {"slots": {"begun": "equal"}}, init=init)
        assert first_complaint(lie).startswith(ASKS)


def test_who_asks_is_told_once():
    checks = checks_of(
        liar(sgd(lr=0.5), {}, apply=lambda self, *given: given[-1] - 0.5 * given[-2] * drift())
    )

    def drift():
        return 1.0 if time.time() else 0.0

    faults = []
    for run in checks.values():
        try:
            run()
        except Exception as fault:
            faults.append(str(fault))
    assert [one.startswith(ASKS) for one in faults] == [True]


def test_a_seed_of_text_is_found():
    def fires(self, cx):
        seed = hash(("often", cx.step))
        return bool(torch.rand(1, generator=torch.Generator().manual_seed(seed)) < 0.5)

    said = found(liar(every(steps=1), {}, fires=fires), "firing")
    assert said.startswith("takes the hash of text, another one in each process: seed with whole numbers")


def test_an_exchange_draws_from_seeds():
    def drawing(seed):
        def run(self, cx, tensor, compressor, state):
            mean = yield from gossip().run(cx, tensor.clone(), compressor, state)
            draw = torch.Generator().manual_seed(seed(cx))
            return mean + 1e-6 * torch.randn(len(mean), generator=draw).to(mean.dtype)

        return liar(gossip(), {}, run=run)

    assert found(drawing(lambda cx: hash((3, cx.step))), "repeats") is None
    said = found(drawing(lambda cx: int.from_bytes(os.urandom(4), "big")), "repeats")
    assert said.startswith("makes something else of the same tensors when it is asked again")


def falls(step):
    return 1 / (1 + step)


def warms(step):
    return 0.5 if step < 100 else 1.0


def drawn(step):
    return float(torch.rand(1, generator=torch.Generator().manual_seed(hash((3, step)))))


@pytest.mark.parametrize(("follows", "is_fault"), [(falls, True), (warms, True), (drawn, False)])
def test_what_falls_or_warms_up_counts_from_its_first_step(follows, is_fault):
    def apply(self, cx, bucket, state, result, base):
        return sgd.apply(self, cx, bucket, state, follows(cx.step) * result, base)

    def read(self, cx, bucket, state, out):
        return gradients.read(self, cx, bucket, state, out).mul_(follows(cx.step))

    def run(self, cx, tensor, compressor, state):
        mean = yield from gossip().run(cx, tensor.clone(), compressor, state)
        return tensor + follows(cx.step) * (mean - tensor)

    lies = (
        (liar(sgd(lr=0.5), {}, apply=apply), "ranks"),
        (liar(gradients(), {}, read=read), "start"),
        (liar(gossip(), {}, run=run), "repeats"),
    )
    for lie, check in lies:
        said = found(lie, check) or ""
        assert said.endswith("count steps by cx.step - cx.start, not by cx.step") == is_fault


@frozen
class by_matrix(Outer):
    """Momentum, of which `made` makes something where it is a matrix's."""

    facts = replace(sgd(lr=0.5).facts, slots={"momentum": "equal"})

    def init(self, bucket):
        return {"momentum": bucket.zeros()}

    def made(self, cx, matrix):
        return matrix

    def apply(self, cx, bucket, state, result, base):
        state["momentum"] = 0.9 * state["momentum"] + result
        parts = state["momentum"].split([item.tensor.numel() for item in bucket.items])
        moves = [
            self.made(cx, part) if item.tensor.dim() == 2 else part
            for item, part in zip(bucket.items, parts, strict=True)
        ]
        return base - 0.1 * torch.cat(moves)


def test_what_an_outer_does_to_matrices_alone_is_found():
    assert first_complaint(by_matrix()) is None
    written = liar(by_matrix(), {}, made=lambda self, cx, matrix: matrix.mul_(0.5))
    assert "its slots ['momentum'] in place" in found(written, "slots")
    apart = liar(by_matrix(), {}, made=lambda self, cx, matrix: matrix * (1 + cx.membership.rank))
    assert found(apart, "ranks").startswith("makes something else on the ranks [1, 2, 3, 7] of 8")


@pytest.mark.parametrize("coder", [random_k(density=0.1, scaled=True), terngrad(clip=2.5)], ids=repr)
def test_what_is_drawn_is_as_much_on_each_rank(coder):
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        scaled = tensor * (1 + cx.membership.rank)
        return (yield from type(coder).encode_decode(self, cx, scaled, state, keep_sent=keep_sent))

    assert found(coder, "ranks") is None
    said = found(liar(coder, {"unbiased": False}, encode_decode=encode_decode), "ranks")
    assert said.startswith("of the same tensor ranks send 1, 2")


def one_bit(kept):
    """The sign, times the mean size, with a residual of a type."""

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        whole = tensor.float() + state["residual"]
        sent = whole.abs().mean() * whole.sign()
        state["residual"] = (whole - sent).to(kept(tensor))
        parts = yield Dense(sent.to(tensor.dtype))
        return sum(weight * part.tensor for weight, part in parts), sent

    facts = {"linear": False, "unbiased": False, "memory": "lossless", "slots": {"residual": "share"}}
    return liar(
        identity(),
        {**facts, "scope": "bucket"},
        init=lambda self, bucket: {"residual": bucket.zeros().to(kept(bucket.zeros().to(bucket.dtype)))},
        encode_decode=encode_decode,
    )


def test_a_residual_is_kept_in_float32_where_an_entry_comes_bit_by_bit():
    assert found(one_bit(lambda tensor: torch.float32), "memory") is None
    for kept in (lambda tensor: torch.bfloat16, lambda tensor: tensor.dtype):
        said = found(one_bit(kept), "memory")
        assert said.startswith("declares to lose nothing, but of one entry of 520 in bfloat16 1560 comes")


def warm(kept):
    """All entries in the first hundred steps, the largest ones then."""

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        whole = tensor.float() + state["residual"]
        count = len(whole) if cx.step - cx.start < 100 else 7
        places = whole.abs().topk(count).indices
        message = Sparse(
            whole[places].to(tensor.dtype), places.int(), torch.tensor([count], dtype=torch.int32)
        )
        sent = torch.zeros_like(whole)
        message.add_to(sent, 1.0)
        state["residual"] = (whole - sent).to(kept)
        parts = yield message
        mean = torch.zeros_like(tensor)
        for weight, one in parts:
            one.add_to(mean, weight)
        return mean, message

    return liar(
        largest(),
        {"follows_clock": True},
        init=lambda self, bucket: {"residual": bucket.zeros().to(kept)},
        encode_decode=encode_decode,
    )


def test_a_residual_is_looked_at_where_a_coder_has_warmed_up():
    assert found(warm(torch.float32), "memory") is None
    assert "that wait 64 steps" in found(warm(torch.bfloat16), "memory")


def test_a_vote_is_the_same_under_a_grad_scaler():
    def vote(squared_norm):
        return liar(on_budget(), {}, vote=lambda self, cx, state, seen: squared_norm(seen) > 100)

    def scaled(seen):
        return float(sum(one.square().sum() for one in seen.gradients))

    assert found(vote(lambda seen: scaled(seen) / seen.scale**2), "firing") is None
    assert found(vote(scaled), "firing").startswith(
        "votes otherwise where a GradScaler has made the gradients"
    )

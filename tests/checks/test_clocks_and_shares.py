"""Clocks that are not the rule's, votes about nothing, weights that stay in, and shares that are none."""

import math
import time
from dataclasses import replace
from datetime import datetime
from functools import partial

import pytest
import torch

from relaxcomm.checks import algorithms_hold
from relaxcomm.checks.algorithms_hold import algorithm_checks
from relaxcomm.checks.compositions import algorithm_around
from relaxcomm.checks.conduct import attributes, nothing_is_added
from relaxcomm.checks.finding import Broken, attempt
from relaxcomm.plugin import Dense, Membership
from relaxcomm.primitives import (
    adagrad,
    adam,
    all_gather,
    client_deltas,
    deltas,
    ef21,
    every,
    identity,
    norm_test,
    push_sum,
    qsgd,
    random_k,
    sgd,
    switch,
    top_k,
)
from tests.checks.test_left_alone import on_budget
from tests.checks.test_liars import found, liar
from tests.checks.test_right_plugins import coin, ladder


def firing(trigger, fires):
    return found(liar(trigger, {}, fires=fires), "firing")


@pytest.mark.parametrize(
    ("clock", "name"), [(lambda: time.time() / 3600, "time"), (lambda: datetime.now().hour, "now")]
)
def test_a_clock_that_does_not_strike_in_between_is_found(clock, name):
    said = firing(every(steps=4), lambda self, cx: clock() < 0)
    assert said.startswith(f"asks a clock of the machine, {name}(), of which no run sees the same again")


FROM_THE_RUN = {
    "doubling": lambda step: (step + 1).bit_count() == 1,
    "a warm-up": lambda step: step < 20 or step % 8 == 0,
}


@pytest.mark.parametrize("kind", FROM_THE_RUN)
def test_steps_are_counted_from_the_first_of_a_rule(kind):
    fires = FROM_THE_RUN[kind]
    assert firing(every(steps=1), lambda self, cx: fires(cx.step - cx.start)) is None
    said = firing(every(steps=1), lambda self, cx: fires(cx.step))
    assert said.startswith("does something else in a rule that becomes active in step 100800")
    assert said.endswith("count steps by cx.step - cx.start, not by cx.step")


@pytest.mark.parametrize("share", [0.5, 0.003])
def test_what_is_drawn_or_comes_again_may_follow_the_runs_steps(share):
    def draws(self, cx):
        generator = torch.Generator().manual_seed(hash((3, cx.step)))
        return bool(torch.rand(1, generator=generator) < share)

    assert firing(every(steps=1), draws) is None
    assert firing(every(steps=1), lambda self, cx: cx.step % 7 == 0) is None


def test_warm_ups_of_other_roles():
    def apply(self, cx, bucket, state, result, base):
        return base - min(1.0, (cx.step + 1) / 20) * result

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        return (yield from switch.encode_decode(self, cx.at(start=0), tensor, state, keep_sent=keep_sent))

    assert "by cx.step - cx.start" in found(liar(sgd(lr=1.0), {}, apply=apply), "ranks")
    honest = switch(first=identity(), then=top_k(density=0.5), steps=5)
    assert found(honest, "clock") is None
    assert "by cx.step - cx.start" in found(liar(honest, {}, encode_decode=encode_decode), "clock")


def test_a_vote_about_nothing_is_found():
    def vote(self, cx, state, observation):
        return (cx.step - cx.start) % 4 == 0

    def since_the_last(self, cx, state, observation):
        yes = float(state["spent"]) >= 3
        self.keep(state, 0.0 if yes else float(state["spent"]) + 1)
        return yes

    for one in (on_budget(), coin()):
        assert found(one, "firing") is None
        for clock in (vote, since_the_last)[: 1 + isinstance(one, on_budget)]:
            assert found(liar(one, {}, vote=clock), "firing").startswith("votes the same on each rank")


def test_votes_by_direction_or_by_numbers_are_about_something():
    def turns(self, cx, state, observation):
        return bool(observation.gradients[0].sum() > 0) or cx.step % 16 == 0

    def loss(self, cx, state, observation):
        return observation.value("loss", default=0.0) > 100 or cx.step % 16 == 0

    def rises(self, cx, state, observation):
        now, before = observation.value("loss", default=0.0), float(state["spent"])
        self.keep(state, now)
        return now > 2 * before > 0

    def soars(self, cx, state, observation):  # or, in most runs, nobody ever votes for it
        return observation.value("loss", default=0.0) > 1e9

    def is_lost(self, cx, state, observation):
        return not math.isfinite(observation.squared_norm) or cx.step % 16 == 0

    def stands(self, cx, state, observation):
        now, before = observation.value("loss", default=0.0), float(state["spent"])
        self.keep(state, now)
        return now == before or cx.step % 16 == 0

    votes = [liar(on_budget(), {}, vote=vote) for vote in (turns, loss, rises, soars, is_lost, stands)]
    assert [found(one, "firing") for one in votes] == [None] * 6


def test_a_vote_may_look_at_what_a_controller_writes():
    def vote(self, cx, state, observation):
        return observation.squared_norm > cx.values["level"]

    assert found(liar(on_budget(), {"needs": frozenset({"level"})}, vote=vote), "slots") is None
    said = found(liar(on_budget(), {}, vote=vote), "slots")
    assert said == "looks at ['level'], which its facts' needs do not name"


def test_a_weight_that_is_not_divided_out_is_found():
    def finalize(self, cx, bucket, state, result):
        return result[:-1].clone()

    assert found(client_deltas(), "weight") is None
    said = found(liar(client_deltas(), {}, finalize=finalize), "weight")
    assert said.endswith("let finalize divide by what came back of it, such as result[:-1] / result[-1]")


@pytest.mark.parametrize("how", ["share", "sum", "fresh"])
def test_an_outers_slots_are_all_ranks(how):
    declared = {"momentum": how, "squares": "equal"}
    said = found(liar(adam(lr=0.1), {"slots": declared}), "carried")
    assert said.endswith("declare 'equal'")
    assert found(liar(adam(lr=0.1), {"slots": dict.fromkeys(declared, "fresh")}), "carried") is None


def test_a_mean_of_what_a_lost_worker_has_sent_is_found():
    honest = ef21(compressor=top_k(density=0.1))
    assert found(honest, "memory") is None
    for mean in ("equal", "share"):
        lie = liar(honest, {"slots": {"estimate": "share", "mean_estimate": mean}})
        assert "but when another worker is lost" in found(lie, "memory")


def test_a_rounding_that_all_ranks_draw_alike_is_found():
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        alike = cx.at(membership=Membership(0, cx.membership.world_size))
        return (yield from qsgd.encode_decode(self, alike, tensor, state, keep_sent=keep_sent))

    assert [found(one, "ranks") for one in (qsgd(), random_k(density=0.1, scaled=True))] == [None, None]
    assert found(liar(qsgd(), {}, encode_decode=encode_decode), "ranks").startswith("draws the same numbers")


def test_a_header_of_eight_bytes_is_found():
    def coded_bytes(self, *of):
        return push_sum.coded_bytes(self, *of) - 8

    assert found(push_sum(), "traffic") is None
    assert "bytes for 12 entries" in found(liar(push_sum(), {}, coded_bytes=coded_bytes), "traffic")


def test_copies_that_begin_at_the_parameters_are_found():
    def init(self, bucket):
        return {"copy": bucket.copy(), "mean": bucket.copy()}

    def run(self, cx, tensor, compressor, state):
        moved = yield from all_gather.run(self, cx, tensor - state["copy"], compressor, state)
        state["mean"] = state["mean"] + moved
        return state["mean"].clone()

    kept = {"slots": {"copy": "fresh", "mean": "fresh"}, "memory": "lossless"}
    said = found(liar(all_gather(), kept, init=init, run=run), "kept state")
    assert said.endswith("so what it keeps begins at them; declare follows_parameters")


def test_a_residual_that_is_added_in_bfloat16_is_found_though_all_entries_are_sent():
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        whole = self.whole(tensor, state["residual"])
        sent = whole.abs().mean() * whole.sign()
        state["residual"] = (whole - sent).to(state["residual"].dtype)
        parts = yield Dense(sent.to(tensor.dtype))
        return sum(weight * part.tensor for weight, part in parts), sent

    facts = {"linear": False, "unbiased": False, "memory": "lossless", "slots": {"residual": "share"}}
    one_bit = partial(
        liar,
        identity(),
        {**facts, "scope": "bucket"},
        init=lambda self, bucket: {"residual": bucket.zeros()},
        encode_decode=encode_decode,
    )
    assert found(one_bit(whole=lambda self, tensor, rest: tensor.float() + rest), "memory") is None
    said = found(one_bit(whole=lambda self, tensor, rest: tensor + rest.to(tensor.dtype)), "memory")
    assert "of bfloat16 entries that wait 64 steps" in said


def test_a_field_that_changes_is_state_too():
    outer = adam(lr=0.1)
    before = attributes(outer)
    object.__setattr__(outer, "lr", 0.05)
    assert attempt("it", "attributes", partial(nothing_is_added, outer, before), 60).fault.startswith(
        "keeps ['lr'] in itself"
    )


def test_an_outer_may_be_slow_but_not_stand_still(monkeypatch):
    monkeypatch.setattr(algorithms_hold, "_EPOCHS", 60)
    algorithm_checks(algorithm_around(adagrad(lr=0.01)))["converges"]()
    monkeypatch.setattr(algorithms_hold, "_EPOCHS", 12)
    stands = replace(algorithm_around(adagrad(lr=1e-9)), name="stands")
    with pytest.raises(Broken, match=r"of the loss that can go is left"):
        algorithm_checks(stands)["converges"]()


def test_a_threshold_of_each_rank_is_found_though_few_sums_pass_it():
    def decide(self, cx, total):
        size = cx.values["batch_size"]
        return {"batch_size": size + (float(total[0]) > 3 * float(total[1]) * (1 + cx.membership.rank))}

    said = found(liar(norm_test(rule=0, tolerance=0.5), {}, decide=decide), "ranks")
    assert said.startswith("decides {'batch_size': 17.0} on rank 0 and {'batch_size': 16.0}")


def test_a_controller_is_shown_sums_that_there_can_be():
    def decide(self, cx, total):
        own, mean = total.tolist()[:2]
        return {"due": cx.step + math.sqrt(own - mean**2 / own)}

    def observe(self, cx, seen):
        return torch.stack([seen.local.double().square().sum(), (seen.local * seen.result).double().sum()])

    assert found(liar(ladder(), {}, observe=observe, decide=decide), "ranks") is None


def test_progress_of_nothing_is_read():
    def read(self, cx, bucket, state, out):
        deltas.read(self, cx, bucket, state, out)
        return out.div_(out.norm())

    assert "where nothing has moved" in found(liar(deltas(), {}, read=read), "one entry")


def test_a_result_is_only_read():
    def apply(self, cx, bucket, state, result, base):
        return base - result.mul_(0.5)

    said = found(liar(sgd(lr=0.5), {}, apply=apply), "slots")
    assert said.startswith("writes into the result, which is not in cx.out, in place")

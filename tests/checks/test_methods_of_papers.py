"""Parts of published methods, as their papers have them, pass; with a mistake in them they do not."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from relaxcomm.plugin import (
    AllReduce,
    Compressor,
    Dense,
    Exchange,
    Memory,
    Outer,
    Payload,
    Stage,
    finish,
    frozen,
    inner_slots,
    inner_state,
)
from relaxcomm.primitives import (
    all_reduce,
    deltas,
    error_feedback,
    gradients,
    identity,
    norm_test,
    parameters,
    random_k,
    sgd,
    signs,
    top_k,
)
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.roles.carried import Slots
from tests.checks.test_liars import found, liar, momentum_of_its_own
from tests.step.test_used_parameters import directions

SHARES = {"anchor": "equal", "mine": "share", "all": "mean of shares", "path": "equal"}


@frozen
class controlled_deltas(deltas):
    """SCAFFOLD's: local steps go by `g_n + c - c_n`."""

    facts = replace(deltas().facts, slots=SHARES)

    def init(self, bucket):
        return {**super().init(bucket), **{name: bucket.zeros() for name in ("mine", "all", "path")}}

    def before_step(self, cx, bucket, state):
        correction = (state["all"] - state["mine"]) * (cx.gradient_scale or 1.0)
        for item, view in zip(bucket.items, bucket.views(correction), strict=True):
            item.grad.add_(view)
        state["path"] = state["path"] + cx.learning_rate(bucket)

    def read(self, cx, bucket, state, out):
        moved = super().read(cx, bucket, state, out)
        state["mine"] = state["mine"] - state["all"] + moved / state["path"]
        return moved

    def finalize(self, cx, bucket, state, result):
        state["all"], state["path"] = result / state["path"], torch.zeros_like(state["path"])
        return result


@frozen
class d2_points(Payload):
    """D2's: `x + p - p_last`, with p that a local step made of x; at first the parameters themselves."""

    facts = replace(parameters.facts, is_model=False, slots={"mixed": "mean", "moved": "mean"})

    def init(self, bucket):
        return {"mixed": bucket.copy(), "moved": bucket.copy()}

    def read(self, cx, bucket, state, out):
        moved = bucket.copy()
        out.copy_(state["mixed"] + moved - state["moved"])
        state["moved"] = moved
        return out

    def write(self, cx, bucket, state, value, snapshot):
        state["mixed"] = value.to(state["mixed"].dtype, copy=True)
        bucket.scatter(value)


@frozen
class tracked_gradients(gradients):
    """Those of gradient tracking: `y + g - g_last`, of which y is the mixture."""

    facts = replace(gradients.facts, is_momentum=True, slots={"track": "mean", "last": "mean"})

    def init(self, bucket):
        return {"track": bucket.zeros(), "last": bucket.zeros()}

    def read(self, cx, bucket, state, out):
        own = super().read(cx, bucket, state, out).to(state["last"].dtype, copy=True)
        out.copy_(state["track"] + own - state["last"])
        state["last"] = own
        return out

    def finalize(self, cx, bucket, state, result):
        state["track"] = result.to(state["track"].dtype, copy=True)
        return result


@frozen
class adam_of_momentum(Outer):
    """1-bit Adam's direction, which its authors do not correct for moments that begin at 0."""

    beta: float = 0.9

    facts = replace(signs.facts, needs_momentum=True, slots={"first": "equal", "second": "equal"})

    def init(self, bucket):
        return {"first": bucket.zeros(), "second": bucket.zeros()}

    def kept(self, result):
        return result.float()

    def apply(self, cx, bucket, state, result, base):
        gradient = (result - self.beta * state["first"]) / (1 - self.beta)
        state["first"] = self.kept(result)
        state["second"] = 0.99 * state["second"] + 0.01 * gradient.square()
        return result / (state["second"].sqrt() + 1e-3)


@frozen
class partial_mean(Exchange):
    """CSER's: what a message leaves out stays where it was, and comes later."""

    facts = replace(all_reduce.facts, same_result=False, takes_divided=False, memory="lossless")

    def run(self, cx, tensor, compressor, state):
        own = tensor.clone()
        coding = compressor.encode_decode(cx, tensor, state, keep_sent=True)
        message = next(coding)
        mean, sent = finish(coding, [(1.0, type(message)((yield AllReduce(message.tensor, "mean"))))])
        return own - sent + mean

    def stages(self, world_size, topology):
        return [Stage(AllReduce)]


@pytest.mark.parametrize(
    ("primitive", "checks"),
    [
        (controlled_deltas(), ["reading", "gradient scale", "one entry", "slots", "carried"]),
        (d2_points(), ["reading", "move", "writing", "slots", "carried"]),
        (tracked_gradients(), ["reading", "momentum", "gradient scale", "slots", "carried"]),
        (adam_of_momentum(), ["momentum", "direction", "ranks", "slots", "carried"]),
        (partial_mean(), ["memory", "results", "traffic", "slots"]),
        (directions(), ["returns", "traffic", "slots"]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_right(primitive, checks):
    assert {check: found(primitive, check) for check in checks} == dict.fromkeys(checks)


def unscaled(self: Any, cx: Any, bucket: Any, state: Any) -> None:
    type(self).__mro__[1].before_step(self, cx.at(gradient_scale=None), bucket, state)


def asks_the_clock(method: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*given: Any, **named: Any) -> Any:
        time.perf_counter()
        return method(*given, **named)

    return timed


def writes_on(self: Any, cx: Any, bucket: Any, state: Any, result: Any, base: Any) -> Any:
    first = 0.9 * state["first"] + result
    state["first"] = first
    return first.sign_()


CLOCK = "asks a clock of the machine, perf_counter()"


@pytest.mark.parametrize(
    ("primitive", "check", "said"),
    [
        (
            liar(controlled_deltas(), {}, before_step=unscaled),
            "gradient scale",
            "made it 1024 times as large: in before_step, multiply by cx.gradient_scale",
        ),
        (liar(d2_points(), {"is_model": True}), "reading", "declares is_model=True, but it is False"),
        (liar(tracked_gradients(), {"is_momentum": False}), "momentum", "declare is_momentum=True"),
        (liar(partial_mean(), {"memory": "none"}), "memory", "what messages leave out comes later"),
        (
            liar(momentum_of_its_own(), {}, apply=writes_on),
            "slots",
            "writes into its slots ['first'] in place",
        ),
        (
            liar(adam_of_momentum(), {}, kept=lambda self, result: result),
            "slots",
            "set its slot 'first' to [12] torch.bfloat16, and init made [12] torch.float32",
        ),
        (liar(sgd(lr=0.5), {}, apply=asks_the_clock(sgd.apply)), "slots", CLOCK),
        (liar(deltas(), {}, read=asks_the_clock(deltas.read)), "slots", CLOCK),
        (liar(identity(), {}, encode_decode=asks_the_clock(identity.encode_decode)), "slots", CLOCK),
        (
            liar(norm_test(rule=0, tolerance=0.5), {}, decide=asks_the_clock(norm_test.decide)),
            "needs",
            CLOCK,
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__mro__[1].__name__,
)
def test_wrong(primitive, check, said):
    assert said in found(primitive, check)


@frozen
class keeps_what_it_is_lent(Compressor):
    """A slot that is assigned the tensor keeps a copy, so that its memory may be written into later."""

    facts = replace(identity.facts, slots={"last": "fresh"})

    def init(self, bucket):
        return {"last": bucket.zeros()}

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        state["last"] = tensor if tensor.dtype == torch.float32 else tensor.float()
        result, sent = yield from identity().encode_decode(cx, tensor, state, keep_sent=keep_sent)
        return (result if keep_sent else tensor.copy_(result)), sent

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


@pytest.mark.parametrize("coder", [keeps_what_it_is_lent(), error_feedback(top_k(density=0.1))], ids=repr)
def test_slots_may_hold_what_is_lent(coder):
    assert found(coder, "slots") is None


@frozen
class leveled(Compressor):
    """Codes by how large the first tensor was in the last mean, which all ranks have alike."""

    facts = replace(identity.facts, follows_results=True, slots={"level": "equal"})

    def init(self, bucket):
        return {"level": torch.zeros(())}

    def seen(self, result, tensor):
        return result

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        factor, own = 2 ** float(state["level"]), tensor.clone()
        parts = yield Dense(tensor * factor)
        result = sum(weight * part.tensor for weight, part in parts) / factor
        seen = self.seen(result, own)
        first = seen[: cx.layout_of(seen.numel()).shapes[0].numel()]
        state["level"] = (first.norm() / seen.norm()).log2().round().float().nan_to_num(0.0, 0.0, 0.0)
        return result, own if keep_sent else None

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


def test_what_each_tensor_has_of_a_mean_is_not_alike():
    assert [found(leveled(), check) for check in ("results", "carried")] == [None, None]
    unsaid = liar(leveled(), {"follows_results": False})
    assert "declare follows_results" in found(unsaid, "results")
    own = liar(leveled(), {}, seen=lambda self, result, tensor: tensor)
    assert "all ranks hold the same 'level', but they differ" in found(own, "carried")


@frozen
class econtrol(Memory):
    """EControl's, whose own sums are two, of which the last one has a mean that all hold."""

    compressor: Compressor
    slots: ClassVar[Slots] = {"missed": "share", "estimate": "share", "mean": "mean of shares"}

    @property
    def facts(self):
        return self.facts_around(self.slots, memory="lossless", follows_results=True)

    def init(self, bucket):
        return {**{slot: bucket.zeros() for slot in self.slots}, **inner_slots(self.compressor, bucket)}

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        missed = self.missed(tensor, state)
        difference = (tensor - state["estimate"] + 0.3 * state["missed"]).to(tensor.dtype)
        inner = inner_state(state, difference)
        change, sent = yield from self.compressor.encode_decode(cx, difference, inner, keep_sent=True)
        state["estimate"] = state["estimate"] + as_dense(sent, tensor)
        state["mean"], state["missed"] = state["mean"] + change, missed() - state["estimate"]
        return state["mean"].clone(), state["estimate"] if keep_sent else None

    def missed(self, tensor, state):
        made = state["missed"] + tensor
        return lambda: made


@frozen
class sent_late(Compressor):
    """Takes what it has sent from the memory of its message, after a sum may lie there."""

    facts = identity.facts

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        message = Dense(tensor.clone())
        parts = yield message
        return sum(weight * part.tensor for weight, part in parts), message.tensor if keep_sent else None

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


@pytest.mark.parametrize("coder", [random_k(density=0.5), top_k(density=0.1)], ids=repr)
def test_a_memory_of_several_sums(coder):
    checks = ["messages", "memory", "state", "slots", "carried"]
    assert {check: found(econtrol(coder), check) for check in checks} == dict.fromkeys(checks)
    unordered = {"mean": "mean of shares", **econtrol(coder).facts.slots}
    assert "declare the one whose mean it is just before it" in found(
        liar(econtrol(coder), {"slots": unordered}), "carried"
    )


def test_slots_as_long_as_a_bucket_look_at_more_than_an_entry():
    narrow = liar(error_feedback(compressor=identity()), {"scope": "entry"})
    assert "declares scope='tensor' at least" in found(narrow, "scope")


def test_what_exchanges_write_into_is_read_before():
    assert "take what was sent before the yield" in found(sent_late(), "messages")
    late = liar(
        econtrol(top_k(density=0.1)), {}, missed=lambda self, tensor, state: lambda: state["missed"] + tensor
    )
    assert "perhaps the tensor: take what you need of it before the yield" in found(late, "messages")

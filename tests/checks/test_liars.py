"""Whatever a primitive declares falsely, a check finds: a lie or more for each field of each role's facts."""

import copy
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar

import networkx as nx
import pytest
import torch

from relaxcomm import CompositionError, ConfigError, PluginError, primitives
from relaxcomm.checks.compressor_facts_hold import compressor_checks
from relaxcomm.checks.controllers_hold import controller_checks
from relaxcomm.checks.exchange_facts_hold import exchange_checks
from relaxcomm.checks.finding import attempt
from relaxcomm.checks.outers_hold import outer_checks
from relaxcomm.checks.payloads_hold import payload_checks
from relaxcomm.checks.triggers_hold import trigger_checks
from relaxcomm.checks.wrapped_compressors import wrapped_facts_are_true
from relaxcomm.plugin import (
    AllReduce,
    Compressor,
    CompressorFacts,
    Controller,
    Dense,
    Exchange,
    Outer,
    Payload,
    Trigger,
    TriggerFacts,
    VotingTrigger,
    frozen,
)
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    average,
    averaging_server,
    cast,
    chain,
    choco_gossip,
    clip_norm,
    dcd_gossip,
    deltas,
    ef21,
    error_feedback,
    every,
    every_round,
    every_step,
    gossip,
    gradients,
    group_all_reduce,
    identity,
    momentum,
    momentum_correction,
    norm_test,
    pairwise,
    parameters,
    push_sum,
    quantize,
    quorum_average,
    random_k,
    relative_gradient_change,
    ring,
    sample_norm_test,
    scatter_gather,
    server,
    sgd,
    sign,
    signs,
    slowmo,
    terngrad,
    top_k,
    trimmed_mean,
    vote,
    while_below,
)
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.topology import from_networkx


@frozen
class when_far(VotingTrigger):
    """Votes for an exchange where a replica is far from the others."""

    agree: str = "any"

    facts: ClassVar[TriggerFacts] = replace(
        relative_gradient_change.facts, looks_at=frozenset({"replica_distance"})
    )

    def vote(self, cx, state, observation):
        return observation.value("replica_distance", 0.0) > 1


KEPT = top_k(density=0.1)
CHECKS: dict[type, Callable[[Any], dict[str, Callable[[], None]]]] = {
    Trigger: trigger_checks,
    Payload: payload_checks,
    Compressor: compressor_checks,
    Exchange: exchange_checks,
    Outer: outer_checks,
    Controller: controller_checks,
}
NOTHING: frozenset[str] = frozenset()
# Of whom, what is declared falsely, and which check finds it.


@frozen
class momentum_of_its_own(signs):
    facts = replace(signs.facts, slots={"first": "equal"})

    def init(self, bucket):
        return {"first": bucket.zeros()}

    def apply(self, cx, bucket, state, result, base):
        state["first"] = 0.9 * state["first"] + result
        return state["first"].sign()


LIES: list[tuple[Any, dict[str, Any], str]] = [
    (relative_gradient_change(threshold=0.1), {"slots": {}}, "carried"),
    (deltas(), {"slots": {}}, "carried"),
    (primitives.client_deltas(), {"slots": dict.fromkeys(("anchor", "moved", "weight"), "equal")}, "carried"),
    (slowmo(lr=1.0, momentum=0.5), {"slots": {}}, "carried"),
    (random_k(density=0.1), {"slots": {}}, "carried"),
    (error_feedback(compressor=KEPT), {"slots": {"residual": "equal"}}, "carried"),
    (error_feedback(compressor=KEPT), {"slots": {"residual": "fresh"}}, "carried"),
    (error_feedback(compressor=KEPT, decay=0.9), {"slots": {"residual": "fresh"}}, "carried"),
    (error_feedback(compressor=random_k(density=0.1)), {"slots": {"residual": "share"}}, "carried"),
    (ef21(compressor=KEPT), {"slots": {"estimate": "mean of shares", "mean_estimate": "share"}}, "carried"),
    (ef21(compressor=KEPT), {"slots": {"estimate": "equal", "mean_estimate": "mean of shares"}}, "carried"),
    (push_sum(), {"slots": {}}, "carried"),
    (push_sum(), {"slots": {"sum": "share", "weight": "sum"}}, "carried"),
    (choco_gossip(gamma=0.4), {"coding": "whole"}, "carried"),
    (all_reduce(), {"coding": "inner"}, "carried"),
    (vote(), {"coding": "parts and mean"}, "carried"),
    (scatter_gather(), {"coding": "parts"}, "carried"),
    (server(staleness=0), {"service": {}}, "carried"),
    (server(staleness=0), {"service": {"values": "part", "clocks": "part"}}, "carried"),
    (every_step(), {"known": "backward"}, "firing"),
    (relative_gradient_change(threshold=0.1), {"known": "start"}, "firing"),
    (every_round(), {"known": "start", "event": None}, "firing"),
    (every_round(), {"event": "another"}, "firing"),
    (every_step(), {"known": "event", "event": "round"}, "firing"),
    (every(steps=2), {"period_steps": 5}, "firing"),
    (while_below(trigger=every_step(), value="size", limit=3.0), {"needs": NOTHING}, "needs"),
    (when_far(), {"looks_at": NOTHING}, "slots"),
    (parameters(), {"site": "backward"}, "reading"),
    (gradients(), {"site": "step"}, "reading"),
    (deltas(), {"is_model": True}, "reading"),
    (parameters(), {"is_model": False}, "reading"),
    (parameters(), {"extra_entries": 1}, "reading"),
    (primitives.client_deltas(), {"extra_entries": 0}, "reading"),
    (parameters(), {"wide": True}, "reading"),
    (primitives.optimizer_state(slots="exp_avg"), {"wide": False}, "reading"),
    (gradients(), {"is_momentum": True}, "momentum"),
    (momentum(), {"is_momentum": False}, "momentum"),
    (parameters(), {"has_base": True}, "base"),
    (deltas(), {"has_base": False}, "base"),
    (deltas(), {"is_move": False}, "move"),
    (parameters(), {"is_move": True}, "move"),
    (gradients(), {"moves_model": True}, "writing"),
    (parameters(), {"moves_model": False}, "writing"),
    (deltas(merge=0.5), {"keeps_local": False}, "writing"),
    (deltas(), {"keeps_local": True}, "writing"),
    (deltas(), {"event": "round", "hears": frozenset({"round"})}, "event"),
    (primitives.client_deltas(), {"hears": NOTHING}, "event"),
    (primitives.client_deltas(), {"event": None}, "event"),
    (identity(), {"kinds": frozenset({"sparse"})}, "messages"),
    (identity(), {"rounds": 2}, "messages"),
    (KEPT, {"most_entries": math.inf}, "messages"),
    (quantize(bits=4), {"scope": "entry"}, "scope"),
    (KEPT, {"scope": "tensor"}, "scope"),
    (error_feedback(compressor=identity()), {"scope": "entry"}, "scope"),
    (KEPT, {"linear": True}, "linearity"),
    (error_feedback(compressor=random_k(density=0.5)), {"linear": True}, "linearity"),
    (KEPT, {"unbiased": True}, "bias"),
    (error_feedback(compressor=KEPT), {"unbiased": True}, "bias"),
    (terngrad(clip=2.5), {"clip": float("inf")}, "bias"),
    (clip_norm(max_norm=1.0), {"max_norm": float("inf")}, "bias"),
    (identity(), {"max_norm": 1.0}, "largest norm"),
    (KEPT, {"memory": "leaky"}, "memory"),
    (KEPT, {"memory": "lossless"}, "memory"),
    (error_feedback(compressor=KEPT), {"memory": "none"}, "memory"),
    (error_feedback(compressor=KEPT, decay=0.5), {"memory": "lossless"}, "memory"),
    (ef21(compressor=KEPT), {"follows_results": False}, "results"),
    (random_k(density=0.1), {"follows_clock": False}, "clock"),
    (cast(dtype="float16"), {"keeps_finite": True}, "finite"),
    (all_reduce(), {"accepts": frozenset({"dense", "sparse"})}, "kinds"),
    (all_reduce(), {"collective": False}, "taking part"),
    (averaging_server(), {"collective": True}, "taking part"),
    (gossip(topology=ring()), {"same_result": True}, "results"),
    (scatter_gather(), {"several_rounds": True}, "rounds"),
    (all_reduce(), {"returns": "votes"}, "returns"),
    (all_reduce(), {"returns": "base"}, "returns"),
    (server(staleness=0), {"returns": "mean"}, "returns"),
    (vote(), {"returns": "mean"}, "returns"),
    (all_gather(), {"returns": "robust mean"}, "robustness"),
    (trimmed_mean(trim=1), {"returns": "mean"}, "results"),
    (all_reduce(), {"topology": "graph"}, "topology"),
    (gossip(), {"topology": "complete"}, "topology"),
    (choco_gossip(gamma=0.4), {"needs_fixed_graph": False}, "kept state"),
    (dcd_gossip(), {"needs_fixed_graph": False}, "kept state"),
    (push_sum(), {"follows_parameters": False}, "kept state"),
    (dcd_gossip(), {"memory": "lossless"}, "memory"),
    (choco_gossip(gamma=0.4), {"memory": "none"}, "memory"),
    (all_gather(), {"takes_divided": True}, "division"),
    (quorum_average(), {"applies_outer": False}, "outer"),
    (server(staleness=0), {"applies_outer": True}, "outer"),
    (all_reduce(), {"applies_outer": True}, "outer"),
    (signs(), {"moves_model": False}, "averaging"),
    (sgd(lr=0.5), {"averages": True}, "averaging"),
    (average(), {"needs_base": True}, "base"),
    (sgd(lr=0.5), {"needs_base": False}, "base"),
    (sgd(lr=0.5), {"needs_learning_rate": True}, "rate"),
    (slowmo(lr=1.0, momentum=0.5), {"needs_learning_rate": False}, "rate"),
    (momentum_of_its_own(), {"needs_momentum": True}, "momentum"),
    (signs(), {"returns_direction": False}, "direction"),
    (average(), {"returns_direction": True}, "direction"),
    (sgd(lr=0.5), {"measures": True}, "measuring"),
    (norm_test(rule=0, tolerance=0.5), {"needs": NOTHING}, "needs"),
    (norm_test(rule=0, tolerance=0.5), {"needs_local": False}, "inputs"),
    (sample_norm_test(rule=0, tolerance=0.5), {"needs_local": True}, "inputs"),
    (sample_norm_test(rule=0, tolerance=0.5), {"needs_micro_gradients": False}, "inputs"),
]


def liar(primitive: Any, lies: dict[str, Any], **methods: Callable[..., Any]) -> Any:
    """The same primitive, which declares something else, or does."""
    made = copy.copy(primitive)
    vars(made).pop("facts", None)
    seems_frozen = {"__dataclass_fields__": type(primitive).__dataclass_fields__}
    written = {"facts": replace(primitive.facts, **lies), **methods, **seems_frozen}
    object.__setattr__(made, "__class__", type("liar", (type(primitive),), written))
    return made


def checks_of(primitive: Any) -> dict[str, Callable[[], None]]:
    return next(checks(primitive) for role, checks in CHECKS.items() if isinstance(primitive, role))


def found(primitive: Any, check: str) -> str | None:
    return attempt("it", check, checks_of(primitive)[check], 60).fault


def shown(value: Any) -> str:
    """The same in every process, which sets and functions are not."""
    return ",".join(value) if isinstance(value, dict) else getattr(value, "__name__", str(value)[:60])


@pytest.mark.parametrize(("honest", "lies", "check"), LIES, ids=shown)
def test_a_lie_is_found(honest, lies, check):
    assert found(honest, check) is None
    assert found(liar(honest, lies), check)


def test_there_is_a_lie_for_every_field():
    for role in CHECKS:
        told = {name for honest, lies, _ in LIES if isinstance(honest, role) for name in lies}
        assert {one.name for one in fields(role.declares)} - told == set()


@pytest.mark.parametrize("share", [0.5, 0.25, 1 / 3])
def test_a_share_of_the_gradient_is_not_taken_for_the_model(share):
    """Whatever the numbers are on which it is tried."""

    def read(self, cx, bucket, state, out):
        return out.mul_(share)

    assert found(liar(gradients(), {}, read=read), "reading") is None


def test_what_is_wide_shortens_no_float64():
    def read(self, cx, bucket, state, out):
        return bucket.copy().float()

    assert "torch.float32 of torch.float64" in found(liar(parameters(), {"wide": True}, read=read), "reading")


@frozen
class sends_more_than_was_left(error_feedback):
    """What waits grows by a factor in each step."""

    gain: float = 1.8

    facts = error_feedback.facts

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        whole = tensor + self.gain * state["residual"]
        result, sent = yield from self.compressor.encode_decode(cx, whole, {}, keep_sent=True)
        state["residual"] = whole - as_dense(sent, whole)
        return result, sent


@pytest.mark.parametrize("density", [0.5, 0.1])
def test_what_grows_while_it_waits_is_no_momentum(density):
    kept = top_k(density=density)
    for share in (0.5, 0.9, 0.99):
        assert found(momentum_correction(compressor=kept, momentum=share), "memory") is None
    assert found(sends_more_than_was_left(compressor=kept, gain=1.0), "memory") is None
    assert "grows ever faster" in found(sends_more_than_was_left(compressor=kept), "memory")


class adagrad(Outer):
    facts = replace(sgd(lr=0.5).facts, averages=False, needs_base=True, slots={"squares": "equal"})

    def init(self, bucket):
        return {"squares": bucket.zeros()}


@frozen
class slot_written(adagrad):
    facts = adagrad.facts

    def apply(self, cx, bucket, state, result, base):
        state["squares"].add_(result.square())
        return base - result


@frozen
class slot_written_and_assigned(adagrad):
    facts = adagrad.facts

    def apply(self, cx, bucket, state, result, base):
        state["squares"] = state["squares"].add_(result.square())
        return base - result


@frozen
class base_written(adagrad):
    facts = adagrad.facts

    def apply(self, cx, bucket, state, result, base):
        return base.sub_(result)


@frozen
class slot_of_another_form(adagrad):
    facts = adagrad.facts

    def apply(self, cx, bucket, state, result, base):
        state["squares"] = 1.5
        return base - result


@frozen
class noisy(gradients):
    facts = gradients.facts

    def read(self, cx, bucket, state, out):
        return gradients.read(self, cx, bucket, state, out).add_(
            torch.randn(out.shape, generator=cx.generator(3, out.device))
        )


def test_noise_is_no_momentum():
    assert not found(noisy(), "momentum")


@frozen
class anchor_written(deltas):
    facts = deltas.facts

    def write(self, cx, bucket, state, value, snapshot):
        state["anchor"].copy_(value)
        bucket.scatter(value)


@frozen
class count_written(all_gather):
    facts = replace(all_gather.facts, slots={"count": "equal"})

    def init(self, bucket):
        return {"count": bucket.zeros()[:1]}

    def run(self, cx, tensor, compressor, state):
        state["count"].add_(1)
        return (yield from all_gather.run(self, cx, tensor, compressor, state))


@frozen
class votes_written(VotingTrigger):
    agree: str = "any"
    facts = replace(relative_gradient_change.facts, slots={"votes": "equal"})

    def init_vote(self):
        return {"votes": torch.tensor(0)}

    def vote(self, cx, state, observation):
        state["votes"] += 1
        return True


@frozen
class residual_written(Compressor):
    facts = replace(identity.facts, slots={"last": "equal"})

    def init(self, bucket):
        return {"last": bucket.zeros()}

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        state["last"].copy_(tensor)
        return (yield from identity().encode_decode(cx, tensor, state, keep_sent=keep_sent))

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


@pytest.mark.parametrize(
    ("primitive", "said"),
    [
        (slot_written(), "its slots ['squares'] in place"),
        (slot_written_and_assigned(), "its slots ['squares'] in place"),
        (base_written(), "writes into the base in place"),
        (slot_of_another_form(), "set its slot 'squares' to 1.5, and init made [12] torch.float32"),
        (anchor_written(), "its slots ['anchor'] in place"),
        (count_written(), "its slots ['count'] in place"),
        (votes_written(), "its slots ['votes'] in place"),
        (residual_written(), "its slots ['last'] in place"),
    ],
    ids=shown,
)
def test_what_is_written_in_place_is_found(primitive, said):
    assert said in found(primitive, "slots")


@frozen
class half(Compressor):
    """Sends the first half of the entries, and does not say so."""

    facts = replace(identity.facts, linear=False, unbiased=False)

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        middle = -(-tensor.numel() // 2)
        parts = yield Dense(tensor[:middle].clone())
        result = torch.zeros_like(tensor)
        result[:middle] = sum(weight * part.tensor for weight, part in parts)
        return result, result

    def message_bytes(self, numel, element_bytes):
        return -(-numel // 2) * element_bytes


@frozen
class as_many_as_entries(half):
    """Declares as many values as there are entries."""

    facts = half.facts

    def values(self, numel, element_bytes):
        return numel, element_bytes


@frozen
class full_precision(cast):
    """Declares that its values are as long as the entries."""

    facts = cast.facts

    def values(self, numel, element_bytes):
        return numel, element_bytes


def test_values_that_a_chain_would_read_wrongly_are_found():
    assert found(cast(dtype="float16"), "values") is None
    assert "(300, 4)" in found(as_many_as_entries(), "values")
    assert "(600, 2)" in found(full_precision(dtype="float16"), "values")


@frozen
class by_matrix(Compressor):
    """Sends what is made of each matrix, and the rest as it is."""

    facts = replace(identity.facts, linear=False, scope="tensor")

    def made_of(self, matrix):
        return matrix

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        sent = tensor.clone()
        for _, shape, start in cx.layout_of(tensor.numel()).spans():
            if len(shape) > 1:
                part = sent[start : start + shape.numel()]
                part.copy_(self.made_of(part.view(shape)).flatten())
        parts = yield Dense(sent.clone())
        return sum(weight * part.tensor for weight, part in parts), sent

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


@pytest.mark.parametrize(
    ("methods", "check", "said"),
    [
        ({"made_of": lambda self, one: one.nan_to_num()}, "hard inputs", "comes out as finite numbers"),
        ({"made_of": lambda self, one: one / one.norm() * one.norm()}, "hard inputs", "is not finite"),
        ({"made_of": lambda self, one: one + 0 * torch.linalg.norm(one, 2)}, "hard inputs", "raises"),
        ({"layout_bytes": lambda self, layout, size: 2400}, "messages", "declares 2400 bytes"),
        (
            {"made_of": lambda self, one: one + one.mean(), "facts": replace(by_matrix.facts, scope="entry")},
            "scope",
            "to look at the entry alone, but those beside it",
        ),
        (
            {"made_of": lambda self, one: one * one.norm(), "facts": replace(by_matrix.facts, linear=True)},
            "linearity",
            "declares to be linear",
        ),
    ],
    ids=["hidden NaN", "a matrix of zeros", "short types", "bytes", "scope", "linearity"],
)
def test_what_is_wrong_with_matrices_alone_is_found(methods, check, said):
    assert found(by_matrix(), check) is None
    assert said in found(liar(by_matrix(), {}, **methods), check)


@frozen
class two_matrices(by_matrix):
    """Sends entries, then their sizes, of which the mean's signs are put before the mean."""

    facts = replace(by_matrix.facts, rounds=2, unbiased=False)

    def added(self, parts):
        return sum(weight * part.tensor for weight, part in parts)

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        mean = sum(weight * part.tensor for weight, part in (yield Dense(tensor.clone())))
        parts = yield Dense(tensor.abs())
        return self.added(parts) * mean.sign(), tensor


def test_rounds_that_are_not_weighted_are_found():
    assert found(two_matrices(), "weights") is None
    for wrong in (
        lambda self, parts: sum(part.tensor for _, part in parts),
        lambda self, parts: sum(part.tensor for _, part in parts) / len(parts),
        lambda self, parts: parts[0][1].tensor,
    ):
        assert "weigh the messages of each round" in found(liar(two_matrices(), {}, added=wrong), "weights")


def double(tensor, keep_sent):
    return tensor if keep_sent else 2 * tensor


@pytest.mark.parametrize(
    ("sends", "returns"),
    [(double, lambda result, keep_sent: result), (lambda tensor, keep_sent: tensor, double)],
    ids=["messages", "result"],
)
def test_what_is_wrong_where_nobody_asks_what_was_sent_is_found(sends, returns):
    """As most exchanges do."""

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        parts = yield Dense(sends(tensor.clone(), keep_sent))
        result = sum(weight * part.tensor for weight, part in parts)
        return returns(result, keep_sent), tensor if keep_sent else None

    assert "with keep_sent=False" in found(liar(identity(), {}, encode_decode=encode_decode), "messages")


@frozen
class residual_if_asked(error_feedback):
    """Keeps what it left out only where it is asked what was sent."""

    facts = error_feedback.facts

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        kept = state if keep_sent else dict(state)
        return (yield from error_feedback.encode_decode(self, cx, tensor, kept, keep_sent=keep_sent))


def test_what_is_kept_only_where_it_is_asked_what_was_sent_is_found():
    assert found(error_feedback(compressor=KEPT), "messages") is None
    assert "with keep_sent=False" in found(residual_if_asked(compressor=KEPT), "messages")


def test_what_takes_weights_to_sum_to_1_is_found():
    """Those of push-sum do not."""

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        parts = yield Dense(tensor.clone())
        return sum(weight * part.tensor for weight, part in parts) / sum(
            weight for weight, _ in parts
        ), tensor

    assert "0.7 of one and 0.2 of" in found(liar(identity(), {}, encode_decode=encode_decode), "weights")
    normalised = liar(
        two_matrices(),
        {},
        added=lambda self, parts: two_matrices.added(self, parts) / sum(weight for weight, _ in parts),
    )
    assert "weigh the messages of each round" in found(normalised, "weights")


def test_a_chain_takes_nothing_for_granted():
    """Values that are not declared are not guessed."""
    with pytest.raises(CompositionError, match=r"the values of half\(\) further, as its values\(\)"):
        chain(compressors=(half(), cast(dtype="float16")))


@pytest.mark.parametrize(
    "spoil",
    [lambda x: torch.cat([x[:600], x[600:] * 0]), lambda x: x * x.numel() / 600, lambda x: x.cumsum(0)],
)
def test_entries_behind_a_bucket_are_spoilt_by_what_says_it_looks_at_one(spoil):
    @frozen
    class spoiling(Compressor):
        """Declares that it looks at the entry alone."""

        facts = identity.facts

        def encode_decode(self, cx, tensor, state, *, keep_sent):
            parts = yield Dense(spoil(tensor))
            result = sum(weight * part.tensor for weight, part in parts)
            return result, result

        def message_bytes(self, numel, element_bytes):
            return numel * element_bytes

    assert "declares to look at the entry alone" in found(spoiling(), "scope")


def test_a_wrapped_liar_is_found():
    with pytest.raises(Exception, match=r"error_feedback\(compressor=liar.*declares"):
        wrapped_facts_are_true(liar(KEPT, {"follows_clock": False, "unbiased": True}))


@pytest.mark.parametrize("base", [identity, top_k, error_feedback])
def test_facts_are_not_inherited(base):
    with pytest.raises(PluginError, match=r"alike declares no facts; .* state each: .*kinds=…, rounds=…"):

        @frozen
        class alike(base):
            """Says nothing of itself."""


def test_facts_of_another_role_are_refused():
    with pytest.raises(PluginError, match="as its facts"):

        @frozen
        class mistaken(identity):
            """Declares what an outer does."""

            facts = average.facts


def test_every_field_is_stated():
    with pytest.raises(
        ConfigError, match=r"CompressorFacts needs 'rounds', 'scope', 'linear', .*; it takes: kinds"
    ):
        CompressorFacts(kinds=frozenset({"dense"}))


@pytest.mark.parametrize(
    ("facts", "mistaken", "said"),
    [
        (identity.facts, {"scope": "tensors"}, "scope = 'tensors' is not allowed: write 'entry', 'tensor',"),
        (identity.facts, {"memory": "loseless"}, "memory = 'loseless' is not allowed: write 'none', 'leaky'"),
        (
            identity.facts,
            {"slots": {"residual": "shared"}},
            "slots.residual = 'shared' is not allowed: write",
        ),
        (all_reduce.facts, {"returns": "means"}, "ExchangeFacts: returns = 'means' is not allowed: write"),
        (average.facts, {"averages": "yes"}, "OuterFacts: averages = 'yes' is not allowed: write"),
    ],
)
def test_a_misspelt_fact_is_refused_where_it_is_stated(facts, mistaken, said):
    with pytest.raises(ConfigError) as caught:
        replace(facts, **mistaken)
    assert said in str(caught.value)


def test_error_feedback_is_as_biased_as_what_it_wraps():
    assert not error_feedback(compressor=KEPT).facts.unbiased
    assert error_feedback(compressor=sign(), decay=0.5).facts.memory == "leaky"


@pytest.mark.parametrize(
    ("honest", "claim", "said"),
    [
        (deltas(), False, "what it reads does not depend on where the parameters are: declare is_move=True"),
        (parameters(), True, "what it reads depends on where the parameters are: declare is_move=False"),
    ],
)
def test_a_move_is_told_what_to_declare(honest, claim, said):
    lying = copy.copy(honest)
    object.__setattr__(lying, "facts", replace(honest.facts, is_move=claim))
    with pytest.raises(Exception, match=said):
        payload_checks(lying)["move"]()


def nothing(*given: Any, **named: Any) -> None:
    """What a method gives that forgets to return."""


MEASURING = liar(sgd(lr=0.5), {"measures": True})
NORM = norm_test(rule=0, tolerance=0.5)


@pytest.mark.parametrize(
    ("honest", "method", "gives", "check", "said"),
    [
        (parameters(), "read", nothing, "reading", "read of liar() returned None; return what is exchanged"),
        (parameters(), "finalize", lambda *given: given[-1][:3], "reading", "; return the payload's result"),
        (gradients(), "read", lambda *given: given[-1], "gradient scale", "of 3, but 3072 where a Grad"),
        (gradients(), "write", nothing, "gradient scale", "gives .grad 3, and 3 where a GradScaler divides"),
        (sgd(lr=1.0), "apply", lambda *given: given[-1].int(), "rate", "[12] of torch.int32; return the new"),
        (MEASURING, "measure", lambda *given: 1.0, "measuring", "returned 1.0; return a few numbers, [k]"),
        (NORM, "observe", lambda *given: 1.0, "needs", "returned 1.0; return a few numbers, [k]"),
        (NORM, "decide", nothing, "needs", "returned None; return new values by name, {} to leave all"),
        (when_far(), "vote", nothing, "slots", "returned None; return True or False"),
        (
            all_reduce(),
            "run",
            lambda self, cx, tensor, *given: (yield AllReduce(tensor))[:1],
            "results",
            "run of liar() with identity() returned [1] of torch.float32; return the combined result",
        ),
        (
            identity(),
            "encode_decode",
            lambda self, cx, tensor, *given, keep_sent: (yield tensor),
            "messages",
            "encode_decode of liar() yielded [600] of torch.float32; yield a message that is dense",
        ),
        (
            identity(),
            "encode_decode",
            lambda self, cx, tensor, *given, keep_sent: (yield Dense(tensor))[0][1].tensor,
            "messages",
            "encode_decode of liar() returned [600] of torch.float32; return the pair (result, sent)",
        ),
    ],
    ids=shown,
)
def test_a_method_that_does_something_else_is_told_so(honest, method, gives, check, said):
    assert said in found(liar(honest, {}, **{method: gives}), check)


@pytest.mark.parametrize(
    ("share", "fault"), [(0.1, None), (0.02, None), (0.0, "exchanges, but ranks do not")]
)
def test_gossip_may_be_slow_but_not_without_end(share, fault):
    def run(self, cx, tensor, compressor, state):
        mean = yield from gossip().run(cx, tensor.clone(), compressor, state)
        return torch.lerp(tensor, mean, share)

    complaint = found(liar(gossip(), {}, run=run), "results")
    assert complaint is None if fault is None else complaint.startswith(fault)


def test_what_came_from_others_has_to_be_in_the_result():
    """The mean over all ranks stays, as it does where each keeps what it has."""

    def run(self, cx, tensor, compressor, state):
        yield from gossip().run(cx, tensor.clone(), compressor, state)
        return tensor

    keeps_its_own = liar(gossip(), {}, run=run)
    assert "ranks do not come closer: what came from others is not in the result" in found(
        keeps_its_own, "results"
    )


def test_ranks_that_mix_in_the_same_pairs_for_ever_are_found():
    def run(self, cx, tensor, compressor, state):
        size = cx.membership.world_size
        pairs = nx.Graph((rank, rank + 1) for rank in range(0, size - 1, 2))
        pairs.add_nodes_from(range(size))
        return (yield from gossip(topology=from_networkx(pairs)).run(cx, tensor, compressor, state))

    said = found(liar(gossip(), {}, run=run), "results")
    assert "not all ranks mix: of what rank 2 puts in nothing comes to rank 0, on 4 ranks" in said


@pytest.mark.parametrize("exchange", [choco_gossip(gamma=0.01), group_all_reduce(), pairwise(), push_sum()])
def test_slow_and_partial_mixing_is_mixing(exchange):
    assert found(exchange, "results") is None


def test_a_copy_of_parameters_is_not_written_into():
    def init(self, bucket):
        return {"copy": bucket.copy()}

    def run(self, cx, tensor, compressor, state):
        state["copy"] += yield from all_gather().run(cx, tensor - state["copy"], compressor, state)
        return state["copy"].clone()

    follows = {"follows_parameters": True, "slots": {"copy": "fresh"}}
    assert "['copy'] in place" in found(liar(all_gather(), follows, init=init, run=run), "slots")


HIDES: dict[str, Callable[[int, torch.Tensor], torch.Tensor]] = {
    "in other places": lambda step, places: (places + step) % 2 == 1,
    "in other steps": lambda step, places: places >= (step > 1) * len(places),
}


@pytest.mark.parametrize("where", HIDES)
def test_what_is_not_finite_is_looked_for_in_several_places_and_steps(where):
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        sent = torch.where(HIDES[where](cx.step, torch.arange(len(tensor))), tensor, 0.0)
        return (yield from identity().encode_decode(cx, sent, state, keep_sent=keep_sent))

    hides = liar(identity(), {"follows_clock": True}, encode_decode=encode_decode)
    assert "so no rank would notice" in found(hides, "hard inputs")

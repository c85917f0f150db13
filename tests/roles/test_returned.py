"""What primitives return comes into a model as it reads, or is refused in words that name them."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from relaxcomm import Algorithm, ConfigError, PluginError, Rule, attach, round_trip, simulate
from relaxcomm.fields.looked_at import error
from relaxcomm.plugin import (
    AllReduce,
    Compressor,
    Controller,
    Dense,
    Exchange,
    Outer,
    SharedSupport,
    Stage,
    Trigger,
    VotingTrigger,
    finish,
    frozen,
)
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    averaging_server,
    cast,
    choco_gossip,
    coordinate_median,
    deltas,
    every_step,
    gossip,
    gradients,
    hierarchical_all_reduce,
    identity,
    norm_test,
    parameters,
    push_sum,
    relative_gradient_change,
    scatter_gather,
    sgd,
    top_k,
)

FORMS = {
    "itself": lambda x: x,
    "doubled": lambda x: 2 * x,
    "column": lambda x: torch.stack([x, torch.full_like(x, 7.0)], 1)[:, 0],
    "mean": lambda x: x.mean().repeat(len(x)),
    "expanded": lambda x: x.mean().expand(len(x)),
    "short": lambda x: x[:1],
    "matrix": lambda x: x.view(1, -1),
    "int": lambda x: x.int(),
    "double": torch.Tensor.double,
    "bool": lambda x: x > 0,
    "none": lambda x: None,
}


@frozen
class coder(Compressor):
    form: str
    facts = identity.facts

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        parts = yield Dense(tensor.clone())
        return FORMS[self.form](sum(weight * part.tensor for weight, part in parts)), None

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


@frozen
class mean(Exchange):
    form: str
    facts = replace(all_reduce.facts, takes_divided=False)

    def run(self, cx, tensor, compressor, state):
        coding = compressor.encode_decode(cx, tensor, state, keep_sent=False)
        message = next(coding)
        message = replace(message, tensor=(yield AllReduce(message.tensor, "mean")))
        return FORMS[self.form](finish(coding, [(1.0, message)])[0])

    def stages(self, world_size, topology):
        return [Stage(AllReduce)]


@frozen
class put_in(parameters):
    form: str
    facts = parameters().facts

    def read(self, cx, bucket, state, out):
        return FORMS[self.form](bucket.gather(out))


@frozen
class taken(parameters):
    form: str
    facts = parameters().facts

    def finalize(self, cx, bucket, state, result):
        return FORMS[self.form](result)


@frozen
class moved(Outer):
    form: str
    facts = sgd.facts

    def apply(self, cx, bucket, state, result, base):
        return FORMS[self.form](base - result)


RULES = {
    "coder": lambda form: Rule(payload=parameters(), compressor=coder(form=form), exchange=all_reduce()),
    "coder of gradients": lambda form: Rule(
        payload=gradients(), compressor=coder(form=form), exchange=all_reduce()
    ),
    "run": lambda form: Rule(payload=parameters(), exchange=mean(form=form)),
    "read": lambda form: Rule(payload=put_in(form=form), exchange=all_reduce()),
    "finalize": lambda form: Rule(payload=taken(form=form), exchange=all_reduce()),
    "apply": lambda form: Rule(payload=deltas(), exchange=all_reduce(), outer=moved(form=form)),
}
DECODED = "the pair (result, sent), the first of which is what was decoded, [numel] = "
SAID = {
    "coder": ("encode_decode of coder(form='{}') returned ", DECODED + "[3]"),
    "coder of gradients": ("encode_decode of coder(form='{}') returned ", DECODED + "[5]"),
    "run": ("run of mean(form='{}') with identity() returned ", "the combined result, [numel] = [3]"),
    "read": ("read of put_in(form='{}') returned ", "what is exchanged, [numel + extra_entries] = [3]"),
    "finalize": ("finalize of taken(form='{}') returned ", "the payload's result, [numel] = [3]"),
    "apply": ("apply of moved(form='{}') returned ", "the new value, [numel] = [3]"),
}


def trained(rule, *controllers, **configured):
    """The parameters of three ranks, in two buckets, after two steps."""

    def rank(group):
        model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 2, bias=False))
        with torch.no_grad():
            for place, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) + place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        config = {"algorithm": Algorithm((rule,), controllers=controllers), "bucket_bytes": 12}
        with attach(model, optimizer, config | configured, process_group=group):
            for step in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 2) * (group.rank() + step)).square().sum().backward()
                optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    return torch.stack(simulate(rank, 3))


@pytest.mark.parametrize("role", RULES)
@pytest.mark.parametrize(("form", "same"), [("column", "itself"), ("expanded", "mean")])
def test_strides_are_heeded(role, form, same):
    torch.testing.assert_close(trained(RULES[role](form)), trained(RULES[role](same)), rtol=0, atol=0)


@pytest.mark.parametrize("role", RULES)
@pytest.mark.parametrize("form", ["short", "matrix", "int", "bool", "none"])
def test_another_form_is_refused_by_name(role, form):
    whose, wanted = SAID[role]
    kind = "torch.float32" if role == "apply" else "floating point"
    said = re.escape(whose.format(form)) + ".*" + re.escape(f"; return {wanted}, {kind}")
    with pytest.raises(PluginError, match=said):
        trained(RULES[role](form))


def test_an_outer_keeps_the_dtype_of_its_base():
    with pytest.raises(PluginError, match=r"apply of .* returned \[3\] of torch.float64; .* torch.float32"):
        trained(RULES["apply"]("double"))


def test_a_gradient_is_what_read_returns_wherever_it_lies():
    @frozen
    class doubled(gradients):
        facts = gradients().facts

        def read(self, cx, bucket, state, out):
            return 2 * out

    expected = trained(Rule(payload=gradients(), compressor=coder(form="doubled"), exchange=all_reduce()))
    torch.testing.assert_close(trained(Rule(payload=doubled(), exchange=all_reduce())), expected)


@frozen
class measuring(Outer):
    form: str
    facts = replace(sgd.facts, measures=True)

    def measure(self, cx, bucket, result):
        return NUMBERS[self.form](bucket.index)

    def apply(self, cx, bucket, state, result, base):
        return base - result


DECIDED = {
    "one": None,
    "typo": {"doo": 3.0},
    "text": {"due": "3"},
    "nan": {"due": math.nan},
    "yes": {"due": True},
}
DECIDED_SAID = {
    "one": "None; return new values by name, {} to leave all",
    "typo": "{'doo': 3.0}; return no other names than init_values gives and facts.needs has: ['due']",
    "text": "{'due': '3'}; return finite numbers, int or float",
    "nan": "{'due': nan}; return finite numbers, int or float",
    "yes": "{'due': True}; return finite numbers, int or float",
}


@frozen
class watching(Controller):
    form: str
    rule: int = 0
    facts = replace(norm_test.facts, needs=frozenset(), needs_local=False)

    def init_values(self):
        return {"due": 1}

    def observe(self, cx, seen):
        return NUMBERS.get(self.form, NUMBERS["one"])(seen.unit)

    def decide(self, cx, total):
        return DECIDED[self.form]


NUMBERS = {
    "float": lambda index: 1.0,
    "scalar": lambda index: torch.tensor(1.0),
    "more": lambda index: torch.ones(1 + index),
    "one": lambda index: torch.ones(1),
}
NUMBERS_SAID = {
    "float": "1.0; return a few numbers, [k]",
    "scalar": "[] of torch.float32; return a few numbers, [k]",
    "more": "[2] of torch.float32; return a few numbers, [k] = [1] as for the bucket before",
}


@pytest.mark.parametrize("form", NUMBERS_SAID)
def test_numbers_of_buckets_are_added_only_where_they_are_as_many(form):
    outer = measuring(form=form)
    with pytest.raises(PluginError, match=re.escape(f"measure of {outer!r} returned {NUMBERS_SAID[form]}")):
        trained(Rule(payload=deltas(), exchange=all_reduce(), outer=outer))
    controller = watching(form=form)
    said = f"observe of {controller!r} returned {NUMBERS_SAID[form]}"
    with pytest.raises(PluginError, match=re.escape(said)):
        trained(Rule(payload=parameters(), exchange=all_reduce()), controller)


@pytest.mark.parametrize("form", DECIDED)
def test_what_a_controller_decides_is_numbers_for_its_names(form):
    controller = watching(form=form)
    said = re.escape(f"decide of {controller!r} returned {DECIDED_SAID[form]}")
    with pytest.raises(PluginError, match=said):
        trained(Rule(payload=parameters(), exchange=all_reduce()), controller)


@pytest.mark.parametrize(
    ("says", "told"), [(None, "None"), (2, "2"), ("no", "'no'"), (np.True_, None), (True, None)]
)
def test_a_trigger_that_fires_says_yes_or_no(says, told):
    @frozen
    class firing(Trigger):
        facts = every_step.facts

        def fires(self, cx):
            return says

    rule = Rule(trigger=firing(), payload=parameters(), exchange=all_reduce())
    if told is None:
        assert trained(rule).unique(dim=0).shape[0] == 1
        return
    with pytest.raises(PluginError, match=rf"fires of firing\(\) returned {told}; return True or False"):
        trained(rule)


def test_what_a_method_returns_is_told_in_short():
    coding = TALKS["mute"](Dense(torch.ones(900)))
    said = str(error((coding, {"more": torch.ones(50, 50)}), "return a pair", "encode_decode", identity()))
    assert len(said) < 600


VOTES = {
    "tensor": torch.tensor([True]),
    "one": 1,
    "none": None,
    "two": 2,
    "several": torch.tensor([True, False]),
}


@frozen
class voting(VotingTrigger):
    form: str
    agree: str = "any"
    facts = replace(relative_gradient_change.facts, slots={})

    def vote(self, cx, state, observation):
        return VOTES[self.form]


@pytest.mark.parametrize("form", VOTES)
def test_a_vote_is_yes_or_no(form):
    rule = Rule(trigger=voting(form=form), payload=parameters(), exchange=all_reduce())
    if form in ("tensor", "one"):
        assert trained(rule).unique(dim=0).shape[0] == 1
        return
    with pytest.raises(PluginError, match=r"vote of voting\(.*\) returned .*; return True or False"):
        trained(rule)


@frozen
class talking(coder):
    facts = identity.facts

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        return TALKS[self.form](Dense(tensor.clone()))


def yields_a_tensor(message):
    yield message.tensor


def returns_a_tensor(message):
    yield message
    return message.tensor


def returns_no_tensor(message):
    yield message
    return None, message.tensor


def yields_another_kind(message):
    yield SharedSupport(message.tensor)


TALKS = {
    "bare": yields_a_tensor,
    "alone": returns_a_tensor,
    "empty": returns_no_tensor,
    "other": yields_another_kind,
    "mute": lambda message: (message.tensor, None),
}
TALKS_SAID = {
    "bare": r"yielded \[\d+\] of torch.float32; yield a message that is dense, as its facts say",
    "alone": r"returned \[\d+\] of torch.float32; return the pair \(result, sent\)",
    "empty": r"returned None; return the pair \(result, sent\), the first of which is what was decoded",
    "other": r"yielded SharedSupport.*; yield a message that is dense, as its facts say",
    "mute": r"returned \(tensor.*; yield a message, be sent what came back, and return the pair",
}


@pytest.mark.parametrize(
    "exchange",
    [
        all_reduce(),
        all_gather(),
        coordinate_median(),
        scatter_gather(),
        gossip(),
        choco_gossip(gamma=0.5),
        push_sum(),
        hierarchical_all_reduce(),
        averaging_server(),
    ],
    ids=lambda exchange: type(exchange).__name__,
)
@pytest.mark.parametrize("form", TALKS)
def test_a_coder_that_does_not_talk_is_named(exchange, form):
    groups = {"topology": {"hierarchical": {"sizes": [2, 1]}}}
    configured = groups if exchange.facts.topology == "groups" else {}
    with pytest.raises(PluginError, match=f"encode_decode of talking.*{TALKS_SAID[form]}"):
        trained(Rule(payload=parameters(), compressor=talking(form=form), exchange=exchange), **configured)


def test_an_exchange_that_yields_no_operation_is_named():
    @frozen
    class lost(mean):
        facts = mean.facts

        def run(self, cx, tensor, compressor, state):
            yield tensor

    with pytest.raises(PluginError, match=r"run of lost.* yielded \[\d\] of .*; yield an operation"):
        trained(Rule(payload=gradients(), exchange=lost(form="itself")))


class Shortened:
    """Coding that is shared among compressors, and is none itself."""

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        parts = yield Dense(tensor.clone())
        return parts[0][1].tensor[:1], None


class Unsaid:
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        yield tensor


@pytest.mark.parametrize(("mixin", "said"), [(Shortened, r"returned \[1\]"), (Unsaid, r"yielded \[3\]")])
def test_a_coder_that_codes_by_a_mixin_is_looked_at(mixin, said):
    @frozen
    class mixed(mixin, coder):
        facts = identity.facts

    with pytest.raises(PluginError, match=f"encode_decode of mixed.* {said}"):
        trained(Rule(payload=parameters(), compressor=mixed(form="itself"), exchange=all_reduce()))


def test_a_coder_may_make_another_kind_of_message_of_its_parents():
    @frozen
    class filled(top_k):
        facts = replace(identity.facts, linear=False, unbiased=False)

        def encode_decode(self, cx, tensor, state, *, keep_sent):
            sparse = next(super().encode_decode(cx, tensor, state, keep_sent=False))
            dense = torch.zeros_like(tensor).index_copy_(0, sparse.indices.long(), sparse.values)
            parts = yield Dense(dense)
            return sum(weight * part.tensor for weight, part in parts), dense.clone()

        def message_bytes(self, numel, element_bytes):
            return numel * element_bytes

    assert round_trip(filled(density=0.5), [torch.tensor([0.5, 3.0, -2.0, 0.1])])[0].tolist() == [0, 3, -2, 0]


@frozen
class counts_halves(identity):
    """Says that an entry takes half a byte."""

    facts = identity.facts

    def layout_bytes(self, layout, element_bytes):
        return 0.5


def test_bytes_are_counted_in_whole_ones():
    with pytest.raises(PluginError, match=r"layout_bytes.* 0\.5; return a whole number of bytes, 0 or more"):
        counts_halves().layout_bytes(None, 4)


def test_more_arguments_without_a_name_than_it_takes_are_refused_with_the_signature():
    with pytest.raises(ConfigError, match="cast takes at most 1 positional arguments: dtype"):
        cast("float16", 2)

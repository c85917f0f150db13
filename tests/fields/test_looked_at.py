"""What plug-ins' methods return is looked at where it comes in; the error names whose, on every rank."""

import re
from dataclasses import replace
from functools import cached_property

import pytest
import torch
from ranks import run_ranks

from relaxcomm import Algorithm, PluginError, Rule, Topology, attach, simulate
from relaxcomm.plugin import RoundPlan, frozen
from relaxcomm.primitives import (
    all_reduce,
    average,
    averaging_server,
    deltas,
    every,
    every_round,
    every_step,
    gossip,
    identity,
    parameters,
    ring,
)


def returning(base, **methods):
    """A plug-in called mine, like another but for some methods or properties."""
    facts = {} if issubclass(base, Topology) else {"facts": vars(base)["facts"]}
    return frozen(type("mine", (base,), {**methods, **facts}))()


def attached(group, part):
    """What is said on a rank that attaches an algorithm with a plug-in's part."""
    topology, parts = "complete", {"payload": parameters(), "exchange": all_reduce(), part.role: part}
    if isinstance(part, Topology):
        topology, parts = part, {"payload": parameters(), "exchange": gossip()}
    delay = "unbounded" if isinstance(part, averaging_server) else 0
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        algorithm = Algorithm((Rule(**parts, delay=delay),), name="made")
        settings = {"algorithm": algorithm, "topology": topology, "bucket_bytes": 12}
        with attach(model, optimizer, settings, process_group=group):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    except PluginError as error:
        return str(error)
    return None


def wrong(value):
    return lambda self, *_, **__: value


WRONG = {
    "payload's init: None": (
        parameters,
        {"init": wrong(None)},
        "init of mine() returned None; return the tensor of",
    ),
    "outer's init: a list": (
        average,
        {"init": wrong([1])},
        "init of mine() returned [1]; return the tensor of each",
    ),
    "init: tensor": (
        all_reduce,
        {"init": wrong(torch.ones(2))},
        "init of mine() returned [2] of torch.float32; re",
    ),
    "override": (
        gossip,
        {"topology_override": wrong("ring")},
        "topology_override of mine() returned 'ring'; return",
    ),
    "round_plan": (
        every_step,
        {"round_plan": wrong(3)},
        "round_plan of mine() returned 3; return a RoundPlan, or ",
    ),
    "serve": (
        averaging_server,
        {"serve": wrong((1, 2))},
        "serve of mine() returned (1, 2); return Served(service",
    ),
    "listeners: None": (
        ring,
        {"listeners": wrong(None)},
        "listeners of mine() with 3 workers returned None for",
    ),
    "listeners: itself": (
        ring,
        {"listeners": wrong([0, 1, 2])},
        "listeners of mine() with 3 workers returned [0,",
    ),
    "listeners: lists": (
        ring,
        {"listeners": wrong([[1]])},
        "listeners of mine() with 3 workers returned [[1]] for",
    ),
    "listeners: twice": (
        ring,
        {"listeners": lambda self, rank, *_: [(rank + 1) % 3] * 2},
        "listeners of mine() with 3 workers returned [",
    ),
    "listeners: none such": (
        ring,
        {"listeners": wrong([1, 3])},
        "exchange 0; return a list of other ranks, from 0 to 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_return_is_named_on_every_rank(case):
    base, methods, said = WRONG[case]
    for text in simulate(lambda group: attached(group, returning(base, **methods)), 3):
        assert said in text


def over_gloo(rank):
    base, methods, _ = WRONG["payload's init: None"]
    return attached(None, returning(base, **methods))


def test_a_wrong_return_is_named_over_gloo():
    for text in run_ranks(over_gloo, world_size=3):
        assert text.startswith(WRONG["payload's init: None"][2])


PHASES = [
    None,
    (),
    ((1, identity()),),
    ((0, "identity"),),
    ((0, identity()), (0, identity())),
    (("0", identity()),),
]


@pytest.mark.parametrize("phases", PHASES)
@pytest.mark.parametrize("kind", [property, cached_property, lambda method: method(None)])
def test_phases_are_compressors_in_order(kind, phases):
    made = returning(identity, phases=named("phases", kind, phases))
    with pytest.raises(PluginError, match=re.escape(f"phases of mine() is {str(phases)[:4]}")):
        made.phases  # noqa: B018  # looked at when it is asked for


def named(name, kind, value):
    made = kind(wrong(value))
    getattr(made, "__set_name__", lambda *_: None)(identity, name)
    return made


def test_phases_that_are_no_property_are_named():
    made = returning(identity, phases=wrong(((0, identity()),)))
    with pytest.raises(PluginError, match=r"phases of mine\(\) is <.*let it be"):
        made.phases  # noqa: B018  # as above


def test_right_returns_are_what_callers_get():
    both = ((0, identity()), (4, identity()))
    assert returning(identity, phases=property(wrong(both))).phases is both
    plan = RoundPlan(epochs=1, fraction=1.0, clients=None)
    assert returning(every_step, round_plan=wrong(plan)).round_plan() is plan
    assert every_round().round_plan() == plan
    assert returning(gossip, topology_override=staticmethod(lambda: None)).topology_override() is None
    for ranks in ((0, 2), range(0, 3, 2), ()):  # what is annotated: any sequence
        assert returning(ring, listeners=wrong(ranks)).listeners(rank=1, world_size=3) is ranks


class Slotless:
    def init(self, bucket):
        return None


def test_what_a_mixin_returns_is_looked_at():
    @frozen
    class mixed(Slotless, deltas):
        facts = deltas.facts

    with pytest.raises(PluginError, match=r"^init of mixed\(\) returned None"):
        Rule(trigger=every(steps=2), payload=mixed(), exchange=all_reduce()).payload.init(None)


def test_what_is_inherited_is_looked_at_once():
    @frozen
    class first(identity):
        facts = identity.facts

        def message_bytes(self, numel, element_bytes):
            return numel

    @frozen
    class second(first):
        facts = replace(identity.facts, linear=False)

    assert "message_bytes" not in vars(second)
    assert second().message_bytes(3, 4) == 3

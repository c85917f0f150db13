"""A complaint names what is wrong, not what follows from it, and the plug-in's line where that raised."""

import asyncio
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any, ClassVar

import networkx as nx
import pytest
import torch

from relaxcomm import CompositionError, Rule, Topology, UsageError, simulate
from relaxcomm.checks.declarations import equal_means_equal
from relaxcomm.checks.exchange_facts_hold import exchange_checks
from relaxcomm.checks.finding import attempt, told
from relaxcomm.checks.topologies_hold import topology_checks
from relaxcomm.plugin import TriggerFacts, frozen
from relaxcomm.primitives import adagrad, all_reduce, every_step, gradients, identity, norm_test, observe, sgd
from tests.checks.test_liars import found, liar

THIS_FILE = "test_blame.py"


def misspelt(self, *given, **named):
    return torch.ones(3).sqare()


LINE = misspelt.__code__.co_firstlineno + 1
MISSPELT = f"AttributeError: 'Tensor' object has no attribute 'sqare' ({THIS_FILE}:{LINE})"


def misspelt_coding(self, cx, tensor, state, *, keep_sent):
    yield misspelt(self)


@pytest.mark.parametrize(
    ("honest", "lies", "method", "check", "said"),
    [
        (
            norm_test(rule=0, tolerance=0.5),
            {},
            "observe",
            "inputs",
            "fails with all that it declares to need: ",
        ),
        (adagrad(lr=0.1), {"needs_base": False}, "apply", "base", "but without a base it fails: "),
        (sgd(lr=0.5), {}, "apply", "rate", ""),
        (all_reduce(), {}, "run", "traffic", ""),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_an_error_is_told_with_its_line(honest, lies, method, check, said):
    assert found(liar(honest, lies, **{method: misspelt}), check).endswith(said + MISSPELT)


def test_what_an_exchange_or_a_hard_input_raises_has_its_line_too():
    refusing = liar(all_reduce(), {}, run=misspelt)
    assert attempt("it", "kinds", exchange_checks(refusing)["kinds"], 60).fault.endswith(f"raises {MISSPELT}")
    coder = liar(identity(), {}, encode_decode=misspelt_coding)
    assert found(coder, "hard inputs").endswith(f"raises {MISSPELT}")


def test_the_innermost_line_is_the_plug_in_s_own():
    """And not one of what it calls; what relaxcomm has worded is told as it is."""
    for call, error in (
        (lambda: nx.path_graph(-1), nx.NetworkXError),
        (lambda: torch.nn.Linear(2, 2)(None), TypeError),
    ):
        with pytest.raises(error) as raised:
            call()
        assert f" ({THIS_FILE}:{call.__code__.co_firstlineno})" in told(raised.value)
    with pytest.raises(UsageError) as refused:
        simulate(print, 0)
    assert told(refused.value) == str(refused.value)


@frozen
class of_numbers(every_step):
    """What users may ask for."""

    numbers: Any = 1

    facts: ClassVar[TriggerFacts] = every_step.facts


def equality(numbers):
    return attempt("it", "equality", partial(equal_means_equal, of_numbers, {"numbers": numbers}), 60).fault


def test_what_cannot_be_hashed_is_named():
    assert equality((("a", 1),)) is None
    assert equality({"a": 1}).startswith("numbers={'a': 1} cannot be hashed; take what can, such as a tuple")
    assert equality((of_numbers(numbers=[2]),)).startswith("numbers=[2] cannot be hashed")


def test_what_a_primitive_cannot_keep_in_itself_has_a_place():
    with pytest.raises(FrozenInstanceError) as raised:
        identity().last = 0
    assert told(raised.value).endswith("; what a primitive keeps lies in a slot of `state`")


def test_a_line_that_is_in_no_file_is_not_told():
    """Of methods that dataclasses write."""
    call = partial(hash, of_numbers(numbers=[2]))
    with pytest.raises(TypeError) as raised:
        call()
    assert f" ({THIS_FILE}:" in told(raised.value)


@pytest.mark.parametrize(
    ("honest", "lies", "said"),
    [
        (sgd(lr=0.5), {"averages": True}, "averages=True, so that the result is taken as it is"),
        (sgd(lr=0.5), {"moves_model": False}, "moves_model=False, so that the model is left alone"),
    ],
)
def test_facts_that_exclude_each_other(honest, lies, said):
    def apply(self, cx, bucket, state, result, base):
        return base - 0.5 * result

    assert [found(one, "averaging") for one in (honest, observe())] == [None, None]
    wrong = found(liar(honest, lies, apply=apply), "averaging")
    assert wrong == f"declares {said}, and also needs_base=True; declare the one or the other"


def test_an_outer_that_moves_nothing_is_not_said_to_move():
    def apply(self, cx, bucket, state, result, base):
        return result

    with pytest.raises(
        CompositionError, match=r"needs the parameters of the last .* declares needs_base=Fal"
    ):
        Rule(
            payload=gradients(),
            exchange=all_reduce(),
            outer=liar(observe(), {"needs_base": True}, apply=apply),
        )


@frozen
class a_row_each(Topology):
    """Weights are asked for all ranks at once."""

    def graph(self, world_size, step=0):
        return nx.path_graph(world_size)

    def weights(self, rank, world_size, step=0):
        return {rank: {rank: 1.0} for rank in range(world_size)}


@frozen
class any_names(Topology):
    """What its arguments are called is nobody's business."""

    def graph(self, workers, number=0):
        return nx.path_graph(workers)

    def weights(self, *where):
        return Topology.weights(self, *where)


def test_weights_of_another_signature_are_told_the_right_one():
    said = attempt("it", "links", topology_checks(a_row_each())["links"], 60).fault
    assert said == (
        "defines weights(rank, world_size, step=0), and is called as weights(world_size); "
        "define weights(self, world_size, step=0)"
    )
    assert attempt("it", "links", topology_checks(any_names())["links"], 60).fault is None


def test_what_is_no_exception_is_a_fault_too():
    """Such as pytest's Skipped, or an operation of asyncio that was cancelled."""

    def cancelled():
        raise asyncio.CancelledError("its own mistake")

    fault = attempt("mine", "builds", cancelled, limit_seconds=60.0).fault
    assert fault.startswith("CancelledError: its own mistake")

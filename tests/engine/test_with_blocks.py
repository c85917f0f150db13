"""What lasts for a `with` block says so where it was called without one, and did nothing."""

from __future__ import annotations

import gc
from contextlib import ExitStack, nullcontext

import pytest
import torch

import relaxcomm

CALLS = ["averaged", "no_sync", "join"]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_without_with_is_told_where_it_stands(call):
    text = rf"^{call}\(\) without `with` does nothing: write `with engine.{call}\(\):`$"
    with relaxcomm.attach(torch.nn.Linear(2, 1), None, "bsp") as engine, pytest.warns(match=text) as told:
        getattr(engine, call)()
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_told_of_one_that_was_entered(call):
    with relaxcomm.attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
        begin = getattr(engine, call)
        with begin():
            pass
        with ExitStack() as stack:
            stack.enter_context(begin())
        with nullcontext() if engine.closed else begin():
            pass
        with pytest.raises(KeyError), begin():
            raise KeyError


def test_nothing_but_the_error_is_told_of_wrong_arguments():
    with relaxcomm.attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
        with pytest.raises(TypeError, match="positional"):
            engine.no_sync(1)
        gc.collect()  # what pytest would tell of


def test_a_function_may_be_decorated():
    model = torch.nn.Linear(2, 1)
    with relaxcomm.attach(model, torch.optim.SGD(model.parameters()), "bsp") as engine:

        @engine.no_sync()
        def accumulate():
            model(torch.ones(1, 2)).sum().backward()

        accumulate()
        accumulate()
        assert engine._session.loop._open.is_accumulated
        assert not engine.statistics["synchronisations"]
        assert torch.equal(model.weight.grad, torch.full((1, 2), 2.0))


@pytest.mark.parametrize("call", CALLS)
def test_each_block_needs_a_call_of_its_own(call):
    with relaxcomm.attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
        block = getattr(engine, call)()
        with block, pytest.raises(relaxcomm.UsageError, match=rf"this {call}\(\) was entered before"), block:
            pass
        for use in (block.__enter__, lambda: block(print)):
            with pytest.raises(relaxcomm.UsageError, match=f"call it anew for each: `with engine.{call}"):
                use()

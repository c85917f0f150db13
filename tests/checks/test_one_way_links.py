"""Exchanges over graphs in which ranks do not give as much as they take."""

import pytest

from relaxcomm.plugin import Exchange
from relaxcomm.primitives import gossip, push_sum
from tests.checks.test_liars import found, liar


def undivided(self, cx, tensor, compressor, state):
    """Push-sum that forgets to divide what has come by the weight that has come with it."""
    yield from push_sum.run(self, cx, tensor, compressor, state)
    return state["sum"].clone()


@pytest.mark.parametrize("exchange", [push_sum(), gossip()], ids=repr)
def test_what_is_right_or_refuses_them_passes(exchange):
    assert found(exchange, "one-way links") is None


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"run": undivided}, "ranks that agree part, 2.11 off: send a weight along"),
        ({"rest": Exchange.rest}, "the mean of what ranks hold is 0.0699 off"),
    ],
    ids=["undivided", "without rest"],
)
def test_what_counts_some_ranks_for_more_is_found(methods, said):
    assert said in found(liar(push_sum(), {}, **methods), "one-way links")

"""What exchanges do over graphs that change, have groups, or links that go one way."""

import pytest

from relaxcomm import TopologyError
from relaxcomm.plugin import Exchange, Neighbors
from relaxcomm.primitives import gossip, group_all_reduce, push_sum
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


def by_step(self, cx, tensor, compressor, state):
    return (yield from gossip.run(self, cx.at(round=cx.step), tensor, compressor, state))


def weighed_as_by_all(self, cx, tensor, compressor, state):
    """The sum over the group, divided by the number of all ranks."""
    size = cx.membership.world_size
    (group,) = (one for one in cx.topology.groups(size) if cx.membership.rank in one)
    return (yield from group_all_reduce.run(self, cx, tensor, compressor, state)) * len(group) / size


def shrunk(self, cx, tensor, compressor, state):
    return 0.9 * (yield from gossip.run(self, cx, tensor, compressor, state))


@pytest.mark.parametrize(
    ("honest", "lies", "methods", "check", "said"),
    [
        (gossip(), {}, {"run": by_step}, "results", "let turns follow cx.round"),
        (group_all_reduce(), {}, {"run": weighed_as_by_all}, "results", "moved by 1.08: let the weights"),
        (group_all_reduce(), {"topology": "complete"}, {}, "topology", "hierarchical(sizes=(3, 1)) differ"),
        (gossip(), {}, {"run": shrunk}, "results", "moved by 0.297: let the weights"),
    ],
    ids=["by step", "weighed as by all", "in groups", "shrunk"],
)
def test_what_is_done_over_a_graph_is_found(honest, lies, methods, check, said):
    assert found(honest, check) is None
    assert said in found(liar(honest, lies, **methods), check)


def of_the_same(self, cx, tensor, compressor, state):
    """Gossip that cannot do without the neighbours of its first round."""
    size = cx.membership.world_size
    assert cx.topology.weights(size, cx.round) == cx.topology.weights(size, 0), "other neighbours"
    return (yield from gossip.run(self, cx, tensor, compressor, state))


def test_who_needs_neighbours_that_stay_is_tried_over_no_others():
    exchange = liar(gossip(), {"needs_fixed_graph": True}, run=of_the_same)
    assert [found(exchange, name) for name in ("results", "kept state")] == [None, None]


def in_two_turns(self, cx, tensor, compressor, state):
    """Gossip by every other exchange, which pairs that take turns leave out."""
    if cx.round % 2:
        return (yield from gossip.run(self, cx, tensor, compressor, state))
    yield Neighbors({}, {})
    return tensor


def test_turns_over_pairs_that_take_turns_are_told_what_to_declare():
    said = found(liar(gossip(), {}, run=in_two_turns), "results")
    assert "not all ranks mix" in said
    assert said.endswith(", or, unless pairs may take turns, declare needs_fixed_graph")


def of_two(self, topology, world_size):
    if world_size != 2:
        raise TopologyError("two workers alone")


def test_two_workers_have_no_graph_that_goes_one_way():
    exchange = liar(gossip(), {}, check_graph=of_two)
    assert [found(exchange, name) for name in ("one-way links", "kept state")] == [None, None]


def test_a_wrong_mean_is_not_said_to_follow_parameters():
    assert found(liar(gossip(), {}, run=shrunk), "kept state") is None

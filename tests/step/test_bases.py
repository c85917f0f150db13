"""Rules that begin later move from where others have brought the replicas."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import CompositionError, attach, simulate

NESTEROV = {"nesterov": {"lr": 0.7, "momentum": 0.9}}


def trained(rules, steps=17, gains=(1.0, 1.0, 1.0), switch=None):
    """A parameter after each step, to which each local step adds a rank's gain."""

    def rank(group):
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=1.0), []
        with attach(model, optimizer, {"algorithm": rules}, process_group=group) as engine:
            for step in range(steps):
                if switch is not None and step == switch[0]:
                    engine.switch(switch[1])
                optimizer.zero_grad()
                (-gains[group.rank()] * model(torch.ones(1, 1))).sum().backward()
                optimizer.step()
                seen.append(model.weight.item())
        return seen

    return simulate(rank, 3)


def later(begins, **more):
    return {"trigger": {"every": {"steps": 4}}, "payload": "deltas", "exchange": "all_reduce"} | {
        "active": [begins, None],
        **more,
    }


BEFORE = {
    "gradients": {"payload": "gradients", "exchange": "all_reduce", "active": [0, 8]},
    "parameters": {"payload": "parameters", "exchange": "all_reduce", "active": [0, 8]},
    "deltas": later(0) | {"active": [0, 8]},
}


@pytest.mark.parametrize("before", BEFORE)
def test_the_first_delta_is_what_was_trained_since(before):
    """8 steps to 8; 4 more and Nesterov's first step, .7 (1 + .9) times as far; and one more."""
    found = trained({"rules": [BEFORE[before], later(8, outer=NESTEROV)]})
    for seen in found:
        assert seen[7] == pytest.approx(8.0)
        assert seen[11] == pytest.approx(8 + 4 * 0.7 * 1.9)
        assert seen[15] == pytest.approx(8 + 4 * 0.7 * 1.9 + 4 * 0.7 * (1 + 0.9 * 1.9))


def test_it_is_the_run_that_switches_there():
    gains = (1.0, 2.0, 6.0)
    rules = {"rules": [BEFORE["gradients"], later(8, outer=NESTEROV)]}
    one = trained(rules, gains=gains)
    other = trained(
        "bsp", gains=gains, switch=(8, {"name": "diloco", "steps": 4, "lr": 0.7, "momentum": 0.9})
    )
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def test_replicas_that_part_again_move_from_where_they_were_equal():
    """The last average is that after step 4; two local steps later the deltas begin."""
    before = {"trigger": {"every": {"steps": 4}}, "payload": "parameters", "exchange": "all_reduce"}
    rules = {"rules": [before | {"active": [0, 6]}, later(6, outer={"sgd": {"lr": 0.5}})]}
    found = trained(rules, steps=10, gains=(1.0, 2.0, 6.0))
    assert [seen[5] for seen in found] == pytest.approx([14.0, 16.0, 24.0])
    assert [seen[9] for seen in found] == pytest.approx([12.0 + 0.5 * 18.0] * 3)


def test_elastic_workers_begin_where_the_gradients_have_brought_them():
    elastic = {"elastic_difference": {"beta": 0.9}}
    rule = later(8) | {"payload": elastic, "outer": {"sgd": {"lr": 0.9}}}
    found = trained({"rules": [BEFORE["gradients"], rule]})
    assert min(seen[11] for seen in found) > 10.0


def test_fragments_that_nobody_has_moved_keep_their_first_base():
    """A rule that begins in its turn is not one that goes on from others."""
    found = trained({"rules": [later(2)]}, steps=6)
    assert [seen[5] for seen in found] == pytest.approx([6.0] * 3)


def test_replicas_that_have_parted_keep_the_base_that_all_share():
    """Gradients keep equal what was equal; after local steps nothing was, and bases must not differ."""
    gradients = BEFORE["gradients"] | {"active": [4, 8]}
    found = trained({"rules": [gradients, later(8)]}, steps=12, gains=(1.0, 2.0, 6.0))
    assert found[0][7] != pytest.approx(found[2][7])
    assert [seen[11] for seen in found] == pytest.approx([36.0] * 3)


GOSSIP = {"payload": "parameters", "exchange": {"gossip": {"topology": "ring"}}}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (BEFORE["gradients"], later(8, exchange="quorum_average"), "held by services"),
        (GOSSIP | {"active": [0, 8]}, later(8, outer=NESTEROV), "differs by then"),
    ],
    ids=["services", "gossip"],
)
def test_a_base_that_is_not_where_replicas_are_is_refused(before, after, said):
    """Services held what was there at first: the second rule took back what the first had trained."""
    for select in ({}, {"select": "weight"}):
        with pytest.raises(CompositionError, match=f"begins in step 8, after Rule.*{said}.*phases"):
            trained({"rules": [before | select, after]})
    assert trained({"rules": [GOSSIP | {"active": [0, 8]}, later(8)]})[0][11] == pytest.approx(12.0)

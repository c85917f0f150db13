"""What all ranks have alike, and what one sends when some have applied what others have not."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import Algorithm
from relaxcomm.engine.membership import next_generation, survival
from relaxcomm.engine.membership.standings import Standing, Standings
from relaxcomm.errors import CommunicationError
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.step.world import World as RanksNow
from tests.engine.harness import World, in_process
from tests.models import take_step
from tests.step.test_controllers import RULE, later_and_later


def after_a_forward(world: World, algorithm, *, parted: bool):
    """What ranks say that they have alike, and then the model that each has from rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 60}) as engine:
        for _ in range(2):
            take_step(model(torch.randn(8, 3, generator=draw)).square().mean(), optimizer)
        model(torch.randn(8, 3, generator=draw))  # of a step in which a rank is lost
        if parted and world.rank == 1:
            with torch.no_grad():
                model[0].weight += 1.0
        bound = engine._session.bound
        alike = survival.shared_digest(bound)
        survival.send_shared(bound, 1)
        engine.close(average=False)
    return alike, model[0].weight.flatten().tolist(), model[1].running_mean.tolist()


def unparted(world: World, algorithm):
    return after_a_forward(world, algorithm, parted=False)[0]


@pytest.mark.parametrize("algorithm", ["bsp", "bytegrad", "signsgd"])
def test_statistics_of_a_forward_make_no_difference(algorithm):
    assert len(set(in_process(unparted, 3, algorithm))) == 1


def parted(world: World):
    return after_a_forward(world, "bsp", parted=True)


def test_one_sends_its_parameters_and_each_rank_keeps_its_statistics():
    alike, weights, statistics = zip(*in_process(parted, 3), strict=True)
    assert len(set(alike)) == 2
    assert weights[0] == weights[1] == weights[2]
    assert len(set(map(tuple, statistics))) == 3


def trained(world: World, algorithm):
    """What is bound after some steps on data of each rank's own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 600}) as engine:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 5, generator=draw) + world.rank).square().mean().backward()
            optimizer.step()
        engine._session.step.release = lambda: None  # what is kept is looked at behind the end
        return engine._session.bound


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_mean_of_estimates_is_that_of_the_ranks_who_are_there(size):
    coder = {"ef21": {"quantize": {"bits": 2}}}  # bucket by bucket
    rule = {"payload": "gradients", "compressor": coder, "exchange": "all_gather"}
    olds = in_process(trained, 3, {"rules": [rule]})

    def go_on(group):
        transport = group.transport()
        kept = olds[2 - min(group.rank(), 2)]  # where two are left, rank 0 is lost
        new = survival.rebound(kept, RanksNow(transport, Statistics(transport.counters)))
        if group.rank() > 2:  # it has joined
            for slots in new.state.slots.values():
                slots["compressor"]["estimate"] = torch.zeros_like(slots["compressor"]["estimate"])
        survival.begin_anew(new, [3] if size > 3 else [])
        return [new.state.slots[place]["compressor"] for place in sorted(new.state.slots)]

    ranks = relaxcomm.simulate(go_on, size)
    assert len(ranks[0]) > 1
    for index, slots in enumerate(zip(*ranks, strict=True)):
        mean = torch.stack([one["estimate"] for one in slots]).mean(0)
        assert mean.any()
        assert all(torch.equal(one["mean_estimate"], slots[0]["mean_estimate"]) for one in slots)
        assert torch.allclose(slots[0]["mean_estimate"], mean, atol=1e-7)
        if size > 2:  # none is lost, so it is what it was
            before = olds[0].state.slots[0, index]["compressor"]["mean_estimate"]
            assert torch.allclose(before, mean, atol=1e-6)


@pytest.mark.parametrize(("algorithm", "others_take_it"), [("choco_sgd", True), ("d_psgd", False)])
def test_one_that_joins_begins_with_the_mean_of_the_others(algorithm, others_take_it):
    """The copy of one of them would move the mean to that."""
    olds = in_process(trained, 4, algorithm)  # the last is the one that joins

    def flat(bound):
        return torch.cat([one.parameter.detach().flatten() for one in bound.replica.parameters])

    def go_on(group):
        transport, old = group.transport(), olds[group.rank()]
        draw = torch.Generator().manual_seed(group.rank() % 3)  # a copy of rank 0's
        with torch.no_grad():
            for one in old.replica.parameters:
                one.parameter.normal_(generator=draw)
        before = flat(old)
        new = survival.rebound(old, RanksNow(transport, Statistics(transport.counters), "ring"))
        survival.begin_anew(new, [3])
        return before, flat(new)

    befores, found = zip(*relaxcomm.simulate(go_on, 4), strict=True)
    assert torch.allclose(found[3], torch.stack(befores[:3]).mean(0), atol=1e-6)
    for before, now in zip(befores[:3], found, strict=False):
        assert torch.equal(now, found[3] if others_take_it else before)


@pytest.mark.parametrize(
    "algorithm",
    [{"name": "selsync", "window_steps": 2}, Algorithm((RULE,), controllers=(later_and_later(),))],
    ids=["votes", "values"],
)
def test_who_stays_goes_on_with_its_votes_values_and_rounds(algorithm):
    """Or, where one has come farther, with the values and rounds of that."""
    olds = in_process(trained, 3, algorithm)

    def go_on(group):
        transport, old = group.transport(), olds[group.rank()]
        new = survival.rebound(old, RanksNow(transport, Statistics(transport.counters)))
        for made in (old, new):
            yield made.votes.export()["slots"], made.controllers.export(), dict(made.state.rounds)
        if group.rank() == 1:
            new.controllers.restore(dict.fromkeys(new.controllers.export(), 7))
            new.state.rounds.update(dict.fromkeys(new.state.rounds, 5))
        survival.send_shared(new, 1)
        yield set(new.controllers.export().values()), set(new.state.rounds.values())

    for (votes, values, rounds), kept, sent in relaxcomm.simulate(lambda group: [*go_on(group)], 2):
        torch.testing.assert_close(kept[0], votes, rtol=0, atol=0)
        assert kept[1:] == (values, rounds)
        assert all(rounds.values())
        assert values == {"due": 3} or any(slots["average"] for slots in votes)
        assert sent == ({7} if values else set(), {5})


def unkept(world: World, rule):
    """What ranks say that they have alike, where two have kept nothing; then what one has sent them."""
    bound = trained(world, {"rules": [rule]})
    slots = [slots for _, state in sorted(bound.state.slots.items()) for slots in state.values()]
    if world.rank != 1:
        for one in slots:
            one.restore({name: torch.zeros_like(one[name]) for name in one})
    alike = survival.shared_digest(bound)
    survival.send_shared(bound, 1)
    return alike, survival.shared_digest(bound), [value for one in slots for value in one.export().values()]


@pytest.mark.parametrize(
    "rule",
    [
        {"payload": "gradients", "compressor": {"power_sgd": {"matrix_rank": 1}}},
        {"payload": {"momentum": {"beta": 0.9}}},
    ],
)
@pytest.mark.filterwarnings("ignore:.*loses a part")
def test_what_rules_keep_equal_is_compared_and_sent(rule):
    alike, sent, kept = zip(*in_process(unkept, 3, {**rule, "exchange": "all_reduce"}), strict=True)
    assert len(set(alike)) == 2
    assert len(set(sent)) == 1
    for slots in zip(*kept, strict=True):
        assert all(torch.equal(one, slots[1]) for one in slots)
    assert any(value.any() for value in kept[0])


def in_a_round(world: World):
    """What is kept of a round in its middle, whose result has come from others."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": {"name": "fedavg", "clients": 4}}) as engine:
        for batch in islice(engine.loader(torch.ones(16, 2), batch_size=2), 3):  # each client has two
            take_step(model(batch).sum(), optimizer)
        bound = engine._session.bound
        (slots,) = (one["payload"] for one in bound.state.slots.values())
        before = slots.export()
        survival.forget_moves(bound)
        engine.close(average=False)
    return before, slots.export()


def test_a_rank_that_is_behind_forgets_what_others_have_had_of_it():
    for before, after in in_process(in_a_round, 2):
        assert before["moved"].any()
        assert before["weight"] == 4
        assert not after["moved"].any()
        assert not after["weight"].any()
        assert torch.equal(before["anchor"], after["anchor"])


def evaluating(world: World, algorithm, who=(1,)):
    """A run whose ranks may change, while some hold other weights than they train, and end with them."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        bound, loaded = engine._session.bound, engine._session.replica.loaded
        loaded.follow(bound.algorithm, is_elastic=True)
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        if world.rank in who:
            model.load_state_dict({name: value + 1 for name, value in trained.items()})
        shared, evaluated = survival.shared_digest(bound), loaded.others()
        with loaded.ending():
            standing = Standing(1, shared=shared, evaluated=evaluated, are_final=loaded.are_final)
        standings = Standings.gather(bound.world, standing)
        model.load_state_dict(trained)
        next_generation._check_trained(bound, standings)
    return True


def test_weights_that_are_evaluated_are_sent_to_nobody():
    with pytest.raises(CommunicationError, match=r"changed bias on ranks \[1\] .* bsp, to go on"):
        in_process(evaluating, 3, "bsp")
    assert in_process(evaluating, 3, "local_sgd") == [True] * 3


def test_weights_that_all_ranks_end_with_stay():
    with pytest.raises(CommunicationError, match=r"changed bias on ranks \[1, 2\] .* are to end with"):
        in_process(evaluating, 3, "ssp", (1, 2))
    assert in_process(evaluating, 3, "ssp", (0, 1, 2)) == [True] * 3

"""Of two ranks one is lost: the other goes on with the server's model, and counts nothing twice."""

from __future__ import annotations

import pytest
import torch

import relaxcomm
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network.in_process import single
from relaxcomm.step.bound import Bound
from relaxcomm.step.handover import Handover
from relaxcomm.step.world import World
from tests.models import take_step

SIZE = 7  # parameters, of which rank 0 serves 4


@pytest.mark.parametrize("fate", ["between steps", "pushed to nobody", "taken by this rank"])
def test_what_is_left_of_a_server(fate):
    def program(group):
        model = torch.nn.Linear(SIZE, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with relaxcomm.attach(model, optimizer, "ssp", process_group=group) as engine:
            for _ in range(3):
                take_step(model(torch.ones(1, SIZE)).sum(), optimizer)
            engine.world.meet("the last push")
            if group.rank() == 0:
                left(engine, model, fate)
            engine.close(average=False)

    relaxcomm.simulate(program, 2)


def left(engine: relaxcomm.Engine, model: torch.nn.Module, fate: str) -> None:
    """Go on alone: this rank has read what the other's part was, and has moved by 10 since."""
    old = engine._session.bound
    (place,) = old.state.services
    service, base = old.state.services[place], old.state.slots[place]["payload"]["anchor"].clone()
    part = service.part().clone()
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 10.0
    if fate != "between steps":
        old.state.rounds[place] += 1  # a push is under way
    if fate == "taken by this rank":
        service._clocks[0] += 1
    transport = single()
    world = World(transport, Statistics(transport.counters))
    handover = Handover(old, world, in_step=fate != "between steps")
    handover.take()
    new = Bound(old.algorithm, old.replica, world, old.norms)
    handover.give(new)
    server = torch.cat([part, base[4:]])
    torch.testing.assert_close(new.state.services[place].part(), server)
    torch.testing.assert_close(new.state.slots[place]["payload"]["anchor"], server)
    kept = torch.full((SIZE,), 10.0)
    if fate == "taken by this rank":
        kept[:4] = 0.0
    torch.testing.assert_close(model.weight.detach()[0], server + kept)
    handover.undo()
    torch.testing.assert_close(model.weight.detach(), before + 10.0)
    transport.close()

"""Large tensors are copied as their gradients come; without gradient rules nothing waits for any."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch

import relaxcomm
from relaxcomm.engine.membership import next_generation
from relaxcomm.engine.membership.next_generation import Transition
from relaxcomm.engine.membership.standings import Standing
from relaxcomm.engine.saved_state import step_state
from relaxcomm.network.generations import Generation

WIDTH = 512  # a tensor of it is large, in a bucket that is
COLLECTIVE = {
    "bsp": "bsp",
    "local_sgd": {"name": "local_sgd", "steps": 2},
    "diloco": {"name": "diloco", "steps": 2},
    "d_psgd": "d_psgd",
    "choco_sgd": "choco_sgd",
}
SERVED = {"easgd": {"name": "easgd", "steps": 2}, "ssp": "ssp", "heloco": {"name": "heloco", "steps": 2}}


class Training:
    """A model with a large tensor, and its optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def attach(self, algorithm, group) -> relaxcomm.Engine:
        return relaxcomm.attach(self.model, self.optimizer, {"algorithm": algorithm}, process_group=group)

    def steps(self, count: int = 3) -> None:
        for _ in range(count):
            self.model(torch.ones(2, WIDTH)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


@pytest.mark.parametrize("algorithm", [*COLLECTIVE.values(), *SERVED.values()], ids=[*COLLECTIVE, *SERVED])
def test_a_run_is_resumed(algorithm):
    def program(group):
        before, after = Training(0), Training(1)
        with before.attach(algorithm, group) as engine:
            before.steps()
            saved = engine.state_dict()
        with after.attach(algorithm, group) as engine:
            engine.load_state_dict(saved)
            after.steps()
            return engine.step

    assert relaxcomm.simulate(program, 2) == [6, 6]


@pytest.mark.parametrize("algorithm", COLLECTIVE.values(), ids=COLLECTIVE)
def test_a_rank_joins(algorithm):
    def program(group):
        training = Training(group.rank())
        with training.attach(algorithm, group) as engine:
            training.steps()
            admit(engine, group)
            training.steps()
            return engine.step

    assert relaxcomm.simulate(program, 3) == [6, 6, 6]


def admit(engine: relaxcomm.Engine, group: relaxcomm.InProcessGroup) -> None:
    """Ranks 0 and 1 go on, and rank 2 joins them as worker 3."""
    session, bound = engine._session, engine._session.bound
    world = replace(bound.world, transport=group.transport())
    if group.rank() == 2:
        resumed, _ = next_generation.join(
            bound, world, session.make_step, session.schedule.algorithm_of, in_step=False, target=None
        )
    else:
        standing = Standing(engine.step, engine.step, loaders=[], algorithm=repr(bound.algorithm))
        left, now = Generation(0, (0, 1, 2)), Generation(1, (0, 1, 3), joined=(3,))
        late = step_state.export_late(session.step)
        schedule = session.schedule.export()
        resumed = next_generation.stay(
            Transition(session.step, world, standing, left, now, session.make_step, schedule, late)
        )
    session.go_on_with(resumed)


def test_flat_gradients_are_let_go_of_when_their_rules_are_over():
    """They are as large as the model, which trains on by rules on parameters; a state may lead back."""

    def program(group):
        training = Training(0)
        with training.attach({"name": "post_local_sgd", "steps": 2, "after_steps": 2}, group) as engine:
            training.steps(1)
            backward, saved = engine._session.step.backward, engine.state_dict()
            flats = [weakref.ref(bucket.buffer) for bucket in backward.buckets]
            training.steps(2)
            gc.collect()
            assert flats
            assert not any(flat() for flat in flats)
            assert not backward.buckets
            engine.load_state_dict(saved)
            training.steps(3)
            return engine.step

    assert relaxcomm.simulate(program, 2) == [4, 4]

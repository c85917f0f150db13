"""Which algorithm a run goes on with when a state is loaded, or when it goes on among other ranks."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import relaxcomm
from relaxcomm import Algorithm, ConfigError, NonFiniteError, Rule
from relaxcomm.plugin import Measured, Planner, PlannerFacts, frozen
from relaxcomm.primitives import all_reduce, every, parameters
from tests.engine.harness import World, engine_state
from tests.models import CASES, make_optimizer


@frozen
class always_bsp(Planner):
    """The same whatever was measured."""

    facts = PlannerFacts(after_steps=4)

    def choose(self, measured: Measured) -> tuple[object, str]:
        return "bsp", "it always does"


RULE = Rule(trigger=every(steps=4), payload=parameters(), exchange=all_reduce())
MEASURING = {"algorithm": Algorithm((RULE,), name="measuring", planner=always_bsp())}
PHASES = [{"after_steps": 2, "algorithm": "local_sgd"}, {"after_steps": 9, "algorithm": "bsp"}]
PHASED = {"algorithm": "bsp", "phases": PHASES}


class Run:
    """A run of one simulated rank."""

    def __init__(self, group, config, steps=0, optimizer="plain"):
        self.world = World(group.rank(), group.size(), group)
        self.model = CASES["toy"].model()
        self.optimizer = make_optimizer(optimizer, self.model)
        self.engine = self.world.attach(self.model, self.optimizer, config)
        self.schedule = self.engine._session.schedule
        self.train(steps)

    def train(self, steps, model=None):
        for step in range(steps):
            self.optimizer.zero_grad()
            CASES["toy"].local_loss(model or self.model, step, self.world.rank).backward()
            self.optimizer.step()


@pytest.mark.parametrize("config", [None, MEASURING, {"algorithm": "bsp"}], ids=["same", "anew", "chosen"])
def test_a_state_after_the_choice_goes_on_with_what_was_chosen(config, capsys):
    """Also in the run that has chosen it, and in one that is configured with it."""

    def program(group):
        run = Run(group, MEASURING, 6)
        choice, state = run.engine.choice, run.engine.state_dict()
        ((saved,),) = state.values()
        saved["measured"]["step_seconds"] *= 2
        if config is not None:
            run.engine.close()
            run = Run(group, config)
        run.engine.load_state_dict(state)
        assert run.engine.algorithm.name == "bsp"
        assert engine_state(run.engine)["measured"] == saved["measured"]
        run.train(2)
        run.engine.close()
        return choice

    (choice, *_) = relaxcomm.simulate(program, 3)
    told = capsys.readouterr().err.splitlines()
    assert told == [f"relaxcomm: {choice}"] * (2 if config is MEASURING else 1)


def test_a_state_of_a_phase_that_this_run_does_not_have_is_refused():
    def program(group):
        with Run(group, PHASED, 3).engine as engine:
            state = engine.state_dict()
        refusal = pytest.raises(ConfigError, match="is in phase 1, and this run has 0; give the conf")
        with Run(group, {"algorithm": "bsp"}).engine as engine, refusal:
            engine.load_state_dict(state)

    relaxcomm.simulate(program, 3)


def test_a_phase_that_trains_as_the_first_one_does_goes_on_as_itself():
    """The phase between them does not begin again."""

    def program(group):
        with Run(group, PHASED, 11).engine as engine:
            state = engine.state_dict()
        run = Run(group, PHASED)
        run.engine.load_state_dict(state)
        to_come = run.schedule.to_come
        with run.engine as engine:
            run.train(1)
            return engine.algorithm.name, to_come

    assert relaxcomm.simulate(program, 3) == [("bsp", ())] * 3


def test_a_state_from_before_a_switch_of_the_program_is_loaded_after_it(capsys):
    def program(group):
        run = Run(group, PHASED, 1)
        state = run.engine.state_dict()
        run.engine.switch("diloco")
        run.engine.load_state_dict(state)
        names = [run.engine.algorithm.name]
        run.train(1)
        run.engine.close()
        return [*names, run.engine.algorithm.name]

    assert relaxcomm.simulate(program, 3) == [["bsp", "local_sgd"]] * 3
    told = capsys.readouterr().err.splitlines()
    assert told == [f"relaxcomm: {phase}" for phase in ("bsp from step 0", "local_sgd from step 2")]


def test_a_phase_that_had_begun_where_a_rank_has_joined_does_not_begin_there():
    def program(group):
        run = Run(group, PHASED)
        run.schedule.begin_at(SimpleNamespace(phase=2, measured=None))
        run.train(3)
        run.engine.close()
        return run.engine.algorithm.name, run.schedule.to_come

    assert relaxcomm.simulate(program, 3) == [("bsp", ())] * 3


def test_steps_that_were_timed_among_other_ranks_do_not_count():
    def program(group):
        run = Run(group, MEASURING, 3)
        timed = run.schedule.export()["step_times"]
        run.schedule.time_anew()
        kept = run.schedule.export()["step_times"]
        run.engine.close()
        return len(timed) > 0, kept

    assert relaxcomm.simulate(program, 3) == [(True, [])] * 3


@pytest.mark.parametrize("calls_model", [True, False])
@pytest.mark.parametrize(
    "config",
    [MEASURING, {"algorithm": "selsync", "phases": [{"after_steps": 4, "algorithm": "bsp"}]}],
    ids=["chosen", "phase"],
)
def test_a_switch_that_has_failed_is_due_again_where_the_next_step_ends(config, calls_model):
    """And a state from between the two is one of the algorithm that ran."""

    def program(group):
        run = Run(group, config, 3, optimizer="adamw")
        first = run.engine.algorithm.name
        moment = next(iter(run.optimizer.state.values()))["exp_avg_sq"]
        if group.rank() == 1:
            moment.fill_(torch.inf)  # by which a step divides
        with pytest.raises(NonFiniteError, match=r"exp_avg_sq of .* on rank 1; no mean was taken"):
            run.train(1)
        state = run.engine.state_dict()
        assert run.engine.algorithm.name == first
        moment.nan_to_num_(0.0, 0.0)
        run.train(1, None if calls_model else torch.nn.Sequential(*run.model))
        run.engine.close()
        resumed = Run(group, config, optimizer="adamw")
        resumed.engine.load_state_dict(state)
        names = [resumed.engine.algorithm.name]
        resumed.train(1)
        resumed.engine.close()
        return [run.engine.algorithm.name, *names, resumed.engine.algorithm.name], first

    for names, first in relaxcomm.simulate(program, 3):
        assert names == ["bsp", first, "bsp"]


def test_a_rank_that_has_run_out_of_data_tries_again_with_the_others():
    """Not before their next step has ended."""
    phase = {"after_steps": 3, "algorithm": "bsp"}

    def program(group):
        run = Run(group, {"algorithm": {"name": "local_sgd", "steps": 2}, "phases": [phase]}, 1, "adamw")
        moment = next(iter(run.optimizer.state.values()))["exp_avg_sq"]
        with run.engine.join():
            for step in range(1, 3 if group.rank() else 6):
                moment.fill_(torch.inf if step == 2 and group.rank() == 1 else 0.0)
                with pytest.raises(NonFiniteError) if step == 2 else nullcontext():
                    run.train(1)
                moment.fill_(0.0)
        run.engine.close()
        return run.engine.algorithm.name, run.model[0].weight.tolist()

    first, *others = relaxcomm.simulate(program, 3)
    assert first[0] == "bsp"
    assert others == [first] * 2


def test_a_rank_without_data_tries_again_with_the_others_after_a_load():
    """A state from between the failed switch and the next step is where the switch has failed."""
    phase = {"after_steps": 3, "algorithm": "bsp"}
    config = {"algorithm": {"name": "local_sgd", "steps": 2}, "phases": [phase]}

    def program(group):
        run = Run(group, config, 2, "adamw")
        moment = next(iter(run.optimizer.state.values()))["exp_avg_sq"]
        moment.fill_(torch.inf if group.rank() == 1 else 0.0)
        with pytest.raises(NonFiniteError):
            run.train(1)
        state = run.engine.state_dict()
        run.engine.close()
        resumed = Run(group, config, optimizer="adamw")
        resumed.engine.load_state_dict(state)
        with resumed.engine.join():
            resumed.train(0 if group.rank() == 1 else 2)
        resumed.engine.close()
        return resumed.engine.algorithm.name, resumed.model[0].weight.tolist()

    first, *others = relaxcomm.simulate(program, 3)
    assert first[0] == "bsp"
    assert others == [first] * 2

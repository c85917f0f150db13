"""After NaN a run goes back to a state from before it, and on as if it had not been."""

from __future__ import annotations

import copy
import time

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import NonFiniteError
from relaxcomm.config import registry
from relaxcomm.testing import PretendGpu
from tests.engine.harness import World, in_process, on_gloo, simulated_workers, values
from tests.models import CASES, make_optimizer, take_step, trainable

SAVED, BAD, STEPS, BAD_RANK = 5, 7, 12, 1
SIZE = 3
OWN = {
    **{name: {"steps": 4} for name in ("local_sgd", "diloco", "noloco", "slowmo", "sparseloco", "easgd")},
    "post_local_sgd": {"steps": 2, "after_steps": 4},
    "selsync": {"window_steps": 4},
    "streaming_diloco": {"steps": 4, "delay": 2},
}
LEFT_OUT = {
    *("ssp", "async_model_average", "decoupled_diloco", "ad_psgd", "heloco"),  # ranks wait for nobody
    *("fedavg", "adaptive_local_sgd", "hierarchical_local_sgd"),  # want more than this loop has
    *("bsp", "auto"),  # gradients that are sent whole are looked at by nobody, as in DDP
    "des_loc",  # wants Adam
}
CASES_IN_ALL = {
    **{name: {"name": name, **OWN.get(name, {})} for name in set(registry.algorithms()) - LEFT_OUT},
    "selsync, later votes": {"name": "selsync", "window_steps": 4, "vote_delay": 1},
    "local_sgd, late": {"name": "local_sgd", "steps": 2, "delay": 1},
}


def gone_back(world: World, algorithm, spoils: bool):
    """The parameters in the end, how often the run has gone back, and its steps."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain")
    times = 0
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        saved = None
        while engine.step < STEPS:
            if engine.step == SAVED and saved is None:
                saved = copy.deepcopy(engine.run_state_dict())
            loss = case.local_loss(model, engine.step, world.rank)
            if spoils and not times and engine.step >= BAD and world.rank == BAD_RANK:
                loss = loss * float("nan")
            try:
                loss.backward()
                optimizer.step()
            except NonFiniteError:
                times += 1
                engine.load_run_state_dict(copy.deepcopy(saved))
                engine.run_state_dict()  # it is between two steps
            optimizer.zero_grad()
        return values(model), times, engine.statistics["steps"]


def both(world: World, algorithm):
    return gone_back(world, algorithm, True), gone_back(world, algorithm, False)


@pytest.mark.every_other("name", of=3)
@pytest.mark.parametrize("name", sorted(CASES_IN_ALL))
def test_it_is_as_if_nan_had_never_been(name):
    found = in_process(both, SIZE, CASES_IN_ALL[name])
    for (after, times, steps), (untouched, never, _) in found:
        assert (times, never) == (1, 0)
        assert steps == STEPS
        assert np.array_equal(after, untouched)


def skipped(world: World, algorithm, at: int, tries: bool, pause_seconds: float = 0.0):
    """The parameters in the end, and where an error came: the batch `at` is NaN on rank 1, or left out.

    After the error rank 1 pauses.
    """
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain")
    raised = []
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for batch in range(STEPS + 1):
            if batch == at and not tries:
                continue
            loss = case.local_loss(model, batch, world.rank)
            try:
                (loss * float("nan") if (batch, world.rank) == (at, BAD_RANK) else loss).backward()
                optimizer.step()
            except NonFiniteError as error:
                raised.append((batch, error.on_all_ranks))
                time.sleep(pause_seconds * (world.rank == BAD_RANK))
            optimizer.zero_grad()
        assert engine.step == STEPS
        return values(model), raised


def with_and_without(world: World, algorithm, pause_seconds: float = 0.0):
    tried = skipped(world, algorithm, BAD, True, pause_seconds)
    return tried, skipped(world, algorithm, BAD, False)


@pytest.mark.parametrize(
    "algorithm",
    [
        *("topk_sgd", "dgc", "powersgd", "gravac", "signsgd", "gaussiank_sgd", "ef21"),
        {"name": "selsync", "aggregate": "gradients"},
        {"name": "selsync", "aggregate": "gradients", "vote_delay": 1},
    ],
    ids=str,
)
def test_a_batch_with_nan_leaves_no_trace(algorithm):
    """The next one takes its place."""
    for (after, raised), (expected, never) in in_process(with_and_without, SIZE, algorithm):
        assert (raised, never) == ([(BAD, True)], [])
        assert np.array_equal(after, expected)


@pytest.mark.parametrize("vote_delay", [0, 1])
def test_where_ranks_vote_after_the_step_who_has_nan_takes_none(vote_delay):
    """The others have taken theirs when they learn of it; the next batch is averaged as ever."""
    workers = simulated_workers(SIZE, "plain")
    for batch in range(STEPS + 1):
        gradients = workers.gradients(batch)
        gradients[BAD_RANK] *= batch != BAD
        workers.update(gradients)
        if batch != BAD + vote_delay:
            workers.parameters = workers.parameters.mean(axis=0)
    selsync = {"name": "selsync", "vote_delay": vote_delay}
    for after, raised in in_process(skipped, SIZE, selsync, BAD, True):
        assert raised == [(BAD + vote_delay, True)]
        np.testing.assert_allclose(after, workers.parameters[0], rtol=1e-6)


def test_a_local_step_with_nan_does_nothing_where_votes_come_late():
    def train(world: World) -> tuple[list[bool], str, bool]:
        case, stood, told = CASES["toy"], [], ""
        model, optimizer = trainable("toy", "momentum")
        selsync = {"name": "selsync", "threshold": 1e9, "window_steps": 1, "vote_delay": 2}
        with world.attach(model, optimizer, {"algorithm": selsync}):
            for batch in range(STEPS):
                before = values(model)
                loss = case.local_loss(model, batch, world.rank)
                try:
                    (loss * float("nan") if (batch, world.rank) == (BAD, BAD_RANK) else loss).backward()
                    optimizer.step()
                except NonFiniteError as error:
                    told += str(error)
                stood.append(np.array_equal(values(model), before))
                optimizer.zero_grad()
        return stood, told, bool(np.isfinite(values(model)).all())

    for rank, (stood, told, is_finite) in enumerate(in_process(train, SIZE)):
        assert stood == [(batch, rank) == (BAD, BAD_RANK) for batch in range(STEPS)]
        assert told.startswith(f"step {BAD}: NaN or infinity in the gradient of")
        assert "on rank 1; the ranks cannot vote, and no optimizer has stepped by such gradients" in told
        assert is_finite


@pytest.mark.ranks
def test_on_gloo_nobody_takes_such_an_error_for_an_end():
    """It is told to no peer, so those that wait for one that pauses and goes on do not end with it."""
    for (after, raised), (expected, _) in on_gloo(with_and_without, SIZE, "topk_sgd", 3.0):
        assert raised == [(BAD, True)]
        assert np.array_equal(after, expected)


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["dgc", "selsync, later votes", "streaming_diloco"])
def test_on_gloo_too(name):
    for (after, times, _), (untouched, *_) in on_gloo(both, SIZE, CASES_IN_ALL[name]):
        assert times == 1
        assert np.array_equal(after, untouched)


def test_a_state_that_is_loaded_in_the_middle_of_a_step_leaves_no_gradients_of_it():
    """Those were exchanged, but the model that they are of is gone."""

    def train(world: World) -> None:
        case = CASES["toy"]
        model, optimizer = trainable("toy", "plain")
        with world.attach(model, optimizer, "bsp") as engine:
            saved = copy.deepcopy(engine.run_state_dict())
            case.local_loss(model, 0, world.rank).backward()
            engine.load_run_state_dict(saved)
            with pytest.raises(relaxcomm.UsageError, match="without a backward that reached"):
                optimizer.step()

    in_process(train, SIZE)


def test_on_a_gpu_the_error_that_was_still_to_come_does_not(monkeypatch):
    """It comes two steps late; who sees NaN in the loss goes back before."""
    monkeypatch.setattr("relaxcomm.network.in_process.tensors_of", lambda operation: [])

    def train(world: World) -> int:
        with gpu.in_thread():
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to("cuda")
            optimizer = make_optimizer("plain", model)
            with world.attach(model, optimizer, "topk_sgd") as engine:
                saved = copy.deepcopy(engine.state_dict())
                for factor in (1.0, float("nan"), 1.0, 1.0, 1.0, 1.0):
                    take_step(factor * model(torch.ones(4, 8, device="cuda")).square().mean(), optimizer)
                    if factor != 1:
                        engine.load_state_dict(copy.deepcopy(saved))
                return engine.step

    with PretendGpu() as gpu:
        assert in_process(train, SIZE) == [4] * SIZE


def again(world: World, algorithm, begin: int):
    """What five steps lead to from a state after `begin` steps, and again from that state."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum")

    def steps(number):
        for step in range(number):
            take_step(case.local_loss(model, step, world.rank), optimizer)
        return values(model)

    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        steps(begin)
        saved = copy.deepcopy(engine.run_state_dict())
        first = steps(5)
        engine.load_run_state_dict(saved)
        return first, steps(5)


@pytest.mark.every_other("algorithm", "begin")
@pytest.mark.parametrize("begin", [0, 2])
@pytest.mark.parametrize(
    "algorithm",
    [
        *("topk_sgd", "delayed_sgd", "async_model_average", "ssp"),
        "qsgd",  # draws by the number of the round
        {"rules": [{"payload": "gradients", "exchange": "averaging_server"}]},  # whose services count rounds
    ],
    ids=str,
)
def test_what_was_kept_or_on_its_way_is_gone(algorithm, begin):
    """Also where the state is from before the first backward; servers no longer wait for what was asked."""
    for first, second in in_process(again, SIZE, algorithm, begin):
        assert np.array_equal(first, second)


@pytest.mark.ranks
def test_servers_go_back_in_processes():
    for first, second in on_gloo(again, SIZE, "async_model_average", 2):
        assert np.isfinite(first).all()
        assert np.isfinite(second).all()


OFTEN, SELDOM = ({"name": "local_sgd", "steps": steps} for steps in (2, 4))


def through_phases(world: World, first, phases, at: int, back_at: int, switches: bool = False):
    """The names of the algorithms by step, and the parameters in the end.

    Args:
        at: after so many steps a state is saved.
        back_at: after so many it is loaded; 0 for never.
        switches: whether the program itself switches before it saves, and before it loads.
    """
    case, seen = CASES["toy"], []
    model, optimizer = trainable("toy", "momentum")
    with world.attach(model, optimizer, {"algorithm": first, "phases": phases}) as engine:
        while engine.statistics["steps"] < STEPS:
            take_step(case.local_loss(model, engine.statistics["steps"], world.rank), optimizer)
            steps = engine.statistics["steps"]
            if steps == at and "load" not in seen:
                if switches:
                    engine.switch(SELDOM)
                saved = copy.deepcopy(engine.run_state_dict())
            seen.append(engine.algorithm.name)
            if steps == back_at and "load" not in seen:
                if switches:
                    engine.switch(SELDOM)
                engine.load_run_state_dict(saved)
                seen.append("load")
        engine.close(average=False)
        return seen, values(model)


@pytest.mark.parametrize("back_at", [6, 10])
@pytest.mark.parametrize(
    ("first", "phases"),
    [
        ("bsp", [(4, OFTEN)]),
        ("bsp", [(4, OFTEN), (8, "bsp")]),
        (OFTEN, [(4, "topk_sgd"), (8, "slowmo")]),
    ],
    ids=["one phase", "the last like the first", "replicas differ"],
)
@pytest.mark.filterwarnings("ignore::relaxcomm.CompositionWarning")
def test_before_the_first_phase_from_a_later_one(first, phases, back_at):
    """Phases that had begun begin again."""
    phases = [{"after_steps": after, "algorithm": algorithm} for after, algorithm in phases]
    returned, straight = (in_process(through_phases, SIZE, first, phases, 2, at) for at in (back_at, 0))
    for (seen, end), (expected, never) in zip(returned, straight, strict=True):
        assert seen == [*expected[:back_at], "load", *expected[2:]]
        assert np.array_equal(end, never)


def test_a_phase_that_has_another_algorithm_now_is_not_taken_for_the_first():
    def train(world: World) -> None:
        model, optimizer = trainable("toy", "plain")
        often, bsp, seldom = (
            {"after_steps": after, "algorithm": algorithm}
            for after, algorithm in ((1, OFTEN), (2, "bsp"), (2, SELDOM))
        )
        with world.attach(model, optimizer, {"algorithm": "bsp", "phases": [often, bsp]}) as engine:
            for step in range(3):
                CASES["toy"].local_loss(model, step, world.rank).backward()
                optimizer.step()
            saved = copy.deepcopy(engine.run_state_dict())
        with world.attach(model, optimizer, {"algorithm": "bsp", "phases": [often, seldom]}) as engine:
            with pytest.raises(
                relaxcomm.ConfigError, match=r"has algorithm 'Algorithm\(bsp: .*has .*every\(steps=4"
            ):
                engine.load_run_state_dict(saved)
            assert engine.algorithm.name == "bsp"

    in_process(train, SIZE)


def test_to_what_the_program_had_switched_to_before_the_first_phase():
    """It switches to that again before it loads, as in a process of its own."""
    phases = [{"after_steps": 4, "algorithm": "bsp"}]
    returned, straight = (in_process(through_phases, SIZE, "bsp", phases, 2, at, True) for at in (6, 0))
    for (seen, end), (expected, never) in zip(returned, straight, strict=True):
        assert seen == [*expected[:6], "load", *expected[2:]]
        assert expected == ["bsp", *["local_sgd"] * 2, *["bsp"] * 9]
        assert np.array_equal(end, never)

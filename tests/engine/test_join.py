"""Ranks with different numbers of batches: who has run out shadows the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaxcomm import UsageError
from tests.engine.harness import World, in_process, simulated_workers, values
from tests.models import CASES, take_step, trainable

BATCHES = (4, 7, 9)


def run(world: World, algorithm, optimizer_name: str, case_name: str, epochs: int):
    """Parameters after each epoch, buffers at the end of the first, and the step count."""
    case = CASES[case_name]
    model, optimizer = trainable(case_name, optimizer_name, seed=world.rank)
    ends = []
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for epoch in range(epochs):
            with engine.join():
                for step in range(BATCHES[world.rank]):
                    take_step(case.local_loss(model, 100 * epoch + step, world.rank), optimizer)
            ends.append(values(model))
        buffers = [b.clone() for b in model.buffers() if b.is_floating_point()]
        steps = engine.statistics["steps"]
    return ends, buffers, steps


def reference(algorithm: str, optimizer_name: str, period: int, epochs: int):
    """Row of the rank that trains longest after each epoch."""
    workers = simulated_workers(3, optimizer_name)
    ends, clock = [], 0
    for epoch in range(epochs):
        for step in range(max(BATCHES)):
            active = np.array([[step < batches] for batches in BATCHES])
            gradients = np.where(active, workers.gradients(100 * epoch + step), 0.0)
            held = workers.parameters
            workers.update(gradients.mean(axis=0) if algorithm == "bsp" else gradients)
            workers.parameters = np.where(active, workers.parameters, held)  # a shadow does not step
            clock += 1
            if algorithm == "local_sgd" and clock % period == 0:
                workers.parameters = workers.parameters.mean(axis=0)
        workers.parameters = workers.parameters[-1]
        ends.append(workers.parameters[0])
    return ends, clock


@pytest.mark.every_other("network", "algorithm", "optimizer", "epochs")
@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd"])
@pytest.mark.parametrize(("optimizer", "epochs"), [("momentum", 1), ("plain", 3)])
def test_join_equals_the_reference_on_every_rank(network, algorithm, optimizer, epochs):
    config = "bsp" if algorithm == "bsp" else {"name": "local_sgd", "steps": 2}
    expected, clock = reference(algorithm, optimizer, 2, epochs)
    for rank, (ends, _, steps) in enumerate(network(run, 3, config, optimizer, "toy", epochs)):
        assert steps == clock
        for epoch, (end, wanted) in enumerate(zip(ends, expected, strict=True)):
            np.testing.assert_allclose(
                end, wanted, rtol=1e-9, atol=1e-9, err_msg=f"rank {rank}, epoch {epoch}"
            )


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 4}], ids=["bsp", "local_sgd"])
def test_join_leaves_the_same_parameters_and_buffers_everywhere(network, algorithm):
    results = network(run, 3, algorithm, "momentum", "convnet", 1)
    for ends, buffers, _ in results[1:]:
        np.testing.assert_array_equal(ends[0], results[0][0][0])
        for found, expected in zip(buffers, results[0][1], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", ["diloco", "slowmo", "post_local_sgd"])
def test_every_algorithm_ends_a_join_with_equal_replicas(network, algorithm):
    options = {"steps": 3} | ({"after_steps": 3} if algorithm == "post_local_sgd" else {})
    results = network(run, 3, {"name": algorithm, **options}, "momentum", "toy", 2)
    for ends, _, steps in results:
        assert steps == 2 * max(BATCHES)
        assert np.isfinite(ends[-1]).all()
        np.testing.assert_array_equal(ends[-1], results[0][0][-1])


def without_data(world: World):
    """A rank that has no batch at all."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=world.rank)
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        with engine.join():
            for step in range(0 if world.rank == 0 else 3):
                take_step(case.local_loss(model, step, world.rank), optimizer)
        return values(model)


def test_a_rank_without_any_batch_shadows_from_the_start(network):
    workers = simulated_workers(3, "plain")
    for step in range(3):
        workers.update(np.where([[False], [True], [True]], workers.gradients(step), 0.0).mean(axis=0))
    for end in network(without_data, 3):
        np.testing.assert_allclose(end, workers.parameters[0], rtol=1e-9, atol=1e-9)


PHASES = {
    "algorithm": {"name": "local_sgd", "steps": 2},
    "phases": [{"after_steps": 6, "algorithm": "bsp"}],
}


def uneven(world: World, config, batches: tuple[int, ...]):
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=world.rank)
    with world.attach(model, optimizer, config) as engine:
        with engine.join():
            for step in range(batches[world.rank]):
                optimizer.zero_grad()  # so that the last gradients are there where data end
                case.local_loss(model, step, world.rank).backward()
                optimizer.step()
        return values(model), engine.algorithm.name, engine.statistics["steps"]


@pytest.mark.every_other("network", "batches")
@pytest.mark.parametrize(
    "batches",
    [
        pytest.param((4, 7, 9), id="a shadow takes part in the switch"),
        pytest.param((7, 8, 9), id="shadows after it"),
        pytest.param((9, 6, 0), id="one has run out just then, one has no data"),
        pytest.param((3, 6, 5), id="nobody comes so far"),
    ],
)
def test_a_switch_inside_it_is_followed_by_who_has_run_out(network, batches):
    workers = simulated_workers(3, "plain")
    for step in range(max(batches)):
        active = np.array([[step < count] for count in batches])
        if step == 6:  # a switch averages all replicas, those of shadows with them
            workers.parameters = workers.parameters.mean(axis=0)
        gradients = np.where(active, workers.gradients(step), 0.0)
        held = workers.parameters
        workers.update(gradients.mean(axis=0) if step >= 6 else gradients)
        workers.parameters = np.where(active, workers.parameters, held)
        if step < 6 and step % 2:
            workers.parameters = workers.parameters.mean(axis=0)
    longest = batches.index(max(batches))
    for end, name, steps in network(uneven, 3, PHASES, batches):
        assert (name, steps) == ("bsp" if max(batches) >= 6 else "local_sgd", max(batches))
        np.testing.assert_allclose(end, workers.parameters[longest], rtol=1e-9, atol=1e-9)


LATE = {"payload": "parameters", "exchange": "all_reduce", "trigger": {"every": {"steps": 4}}, "delay": 3}


@pytest.mark.filterwarnings("ignore:.*replicas part for good")
@pytest.mark.parametrize("batches", [(3, 5, 12), (3, 5, 9)], ids=["in time", "too late"])
def test_a_rule_that_ends_is_followed_to_its_last_result(batches):
    """Its averages are those after steps 3 and 7, applied before steps 6 and 10 end, or with join()."""
    workers, moves = simulated_workers(3, "plain"), {}
    for step in range(max(batches)):
        active = np.array([[step < count] for count in batches])
        gradients = np.where(active, workers.gradients(step), 0.0)
        workers.parameters = held = workers.parameters + moves.pop(step, 0.0)
        workers.update(gradients)
        workers.parameters = np.where(active, workers.parameters, held)
        if step in (3, 7):
            moves[step + 3] = workers.parameters.mean(axis=0) - workers.parameters
    expected = workers.parameters + moves.pop(10, 0.0)
    config = {"algorithm": {"rules": [LATE | {"active": [0, 8]}]}}
    for end, _, steps in in_process(uneven, 3, config, batches):
        assert steps == max(batches)
        np.testing.assert_allclose(end, expected[2], rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*replicas part for good")
def test_a_rule_of_gradients_that_ends_is_followed_to_its_last_late_one():
    """The gradients of steps 0 to 4 land three steps later, beside a step's own from step 5 on."""
    workers, late, batches = simulated_workers(3, "plain"), {}, (3, 5, 9)
    for step in range(max(batches)):
        active = np.array([[step < count] for count in batches])
        own, held = np.where(active, workers.gradients(step), 0.0), workers.parameters
        if step < 5:
            late[step + 3], own = own.mean(axis=0), np.zeros_like(own)
        workers.update(own + late.pop(step, 0.0))
        workers.parameters = np.where(active, workers.parameters, held)
    rule = {"payload": "gradients", "exchange": "all_reduce", "delay": 3, "active": [0, 5]}
    for end, _, steps in in_process(uneven, 3, {"algorithm": {"rules": [rule]}}, batches):
        assert steps == max(batches)
        np.testing.assert_allclose(end, workers.parameters[2], rtol=1e-9, atol=1e-9)


def enter(context):
    with context:
        pass


def goes_elsewhere_inside(world: World, algorithm: str):
    """What refuses what all do together inside, when another may have no data left; what runs after one."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        state, run_state, refused = engine.state_dict(), engine.run_state_dict(), []
        told = []  # of the other way to switch
        calls = [
            lambda: engine.switch("local_sgd"),
            lambda: engine.load_state_dict(state),
            lambda: engine.load_run_state_dict(run_state),
            lambda: engine.together(lambda: engine.world.gather(1, "a comparison")),
            lambda: enter(engine.averaged()),
            *([engine.finish] if engine.algorithm.keeps_step else [engine.state_dict, engine.run_state_dict]),
        ]
        with engine.join():
            for call in calls if world.rank else ():
                with pytest.raises(UsageError, match="could not follow") as caught:
                    call()
                refused.append(str(caught.value).partition(":")[0])
                told.append("`phases`" in str(caught.value))
        for call in reversed(calls[:5]):
            call()
        assert told == [algorithm == "bsp", *[False] * 6][: len(told)]
        return engine.algorithm.name, refused


@pytest.mark.every_other("network", "algorithm")
@pytest.mark.parametrize("algorithm", ["bsp", "ssp", "decoupled_diloco"])
def test_what_all_do_together_is_refused_inside_it(network, algorithm):
    loads = "load_run_state_dict() or checkpoint.load() inside join()"
    refused = ["switch() inside join()", "load_state_dict() inside join()", loads]
    refused += ["together(), checkpoint.save() or load() inside join()", "averaged() inside join()"]
    saves = ["state_dict() inside join()", "run_state_dict() or checkpoint.save() inside join()"]
    refused += ["close() or finish() inside join()"] if algorithm == "bsp" else saves
    for rank, (name, found) in enumerate(network(goes_elsewhere_inside, 3, algorithm)):
        assert name == "local_sgd"
        assert found == (refused if rank else [])


def after_steps_of_its_own(world: World):
    """Ranks that have made 0, 9 and 3 steps where none are in common join with other batches."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=world.rank)
    with world.attach(model, optimizer, {"algorithm": "ssp"}) as engine:
        for batches in ((0, 9, 3), (5, 2, 1)):
            begin = values(model)
            with engine.join():
                for step in range(batches[world.rank]):
                    take_step(case.local_loss(model, step, world.rank), optimizer)
            if engine.algorithm.name == "ssp":
                engine.switch("bsp")
        for step in range(5, 7):  # their clocks are the same
            take_step(case.local_loss(model, step, world.rank), optimizer)
        return begin, values(model)


def test_who_trains_longest_is_told_by_the_steps_in_common(network):
    results = network(after_steps_of_its_own, 3)
    workers = simulated_workers(3, "plain")
    workers.parameters = np.stack([begin for begin, _ in results])
    for step in range(7):
        active = [[step < batches or step >= 5] for batches in (5, 2, 1)]
        workers.update(np.where(active, workers.gradients(step), 0.0).mean(axis=0))
    for _, end in results:
        np.testing.assert_allclose(end, workers.parameters[0], rtol=1e-9, atol=1e-9)


def join_without_a_batch(world: World, algorithm):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine, engine.join():
        for _ in range((0, 5, 4)[world.rank]):
            optimizer.zero_grad()
            model((1.0 + world.rank) * torch.ones(2, 3)).sum().backward()
            optimizer.step()
    return values(model)


@pytest.mark.every_other("network", "begins")
@pytest.mark.parametrize("begins", [0, 2, 4])
def test_a_rank_without_a_batch_where_gradients_are_exchanged_later(network, begins):
    """All agree on buckets in the first backward, whether a rule is active by then or not."""
    rules = [
        {"payload": "parameters", "exchange": "all_reduce", "active": [0, max(begins, 1)]},
        {"payload": "gradients", "exchange": "all_reduce", "active": [begins, None]},
    ]
    first, *others = network(join_without_a_batch, 3, {"rules": rules})
    for other in others:
        np.testing.assert_array_equal(first, other)

"""What goes wrong on one rank ends on every rank, soon, with one clear message."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests import references
from tests.engine.harness import World, in_rank_process, on_gloo, simulated_workers, values
from tests.models import CASES, make_optimizer, take_step, trainable
from tests.ranks import RankError, run_ranks

pytestmark = pytest.mark.ranks
LOCAL = {"name": "local_sgd", "steps": 2}
CONFIGURATION = {"ConfigError", "CompositionError", "CommunicationError", "UsageError"}


def errors_of(scenario, size: int, *args, debug: bool = False) -> dict[int, tuple[str, str]]:
    """(type name, message) of every rank that failed."""
    with pytest.raises(RankError) as caught:
        on_gloo(scenario, size, *args, debug=debug)
    return caught.value.errors


def build(rank: int, shapes, dtypes=(torch.float32,) * 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, shapes[rank]), nn.Linear(shapes[rank], 2)).to(dtypes[rank])


def attach_only(world: World, configs, shapes, dtypes) -> None:
    model = build(world.rank, shapes, dtypes)
    world.attach(model, make_optimizer("plain", model), configs[world.rank]).close()


SAME, FLOATS = (3, 3, 3), (torch.float32,) * 3
DISAGREEMENTS = {
    "unknown_algorithm_on_one_rank": (
        [{"algorithm": "bsp"}, {"algorithm": "bps"}, {"algorithm": "bsp"}],
        SAME,
        FLOATS,
    ),
    "unknown_key_on_one_rank": (
        [{"algorithm": "bsp"}] * 2 + [{"algorithm": "bsp", "bukcet": 1}],
        SAME,
        FLOATS,
    ),
    "other_period": ([{"algorithm": LOCAL}] * 2 + [{"algorithm": LOCAL | {"steps": 8}}], SAME, FLOATS),
    "other_algorithm": ([{"algorithm": LOCAL}, {"algorithm": "bsp"}, {"algorithm": "bsp"}], SAME, FLOATS),
    "other_bucket_bytes": (
        [{"algorithm": "bsp"}] * 2 + [{"algorithm": "bsp", "bucket_bytes": 1 << 20}],
        SAME,
        FLOATS,
    ),
    "other_shape": ([{"algorithm": "bsp"}] * 3, (3, 3, 5), FLOATS),
    "other_dtype": ([{"algorithm": "bsp"}] * 3, SAME, (torch.float32, torch.float64, torch.float32)),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreement_at_attach_ends_on_every_rank(name, debug):
    errors = errors_of(attach_only, 3, *DISAGREEMENTS[name], debug=debug)
    assert set(errors) == {0, 1, 2}
    for kind, message in errors.values():
        assert kind in CONFIGURATION, message


def test_the_rank_with_a_wrong_name_learns_the_closest_one_and_the_others_learn_which_rank():
    errors = errors_of(attach_only, 3, *DISAGREEMENTS["unknown_algorithm_on_one_rank"])
    assert errors[1][0] == "ConfigError"
    assert "bps" in errors[1][1]
    assert "bsp" in errors[1][1]
    for rank in (0, 2):
        assert "rank 1" in errors[rank][1], errors[rank]


def test_a_disagreement_about_shapes_names_the_parameter_and_the_rank():
    for _, message in errors_of(attach_only, 3, *DISAGREEMENTS["other_shape"]).values():
        assert "0.weight" in message
        assert "2" in message


def leave_early(world: World, algorithm, at_step: int, name: str):
    """Rank 2 stops calling the engine until the others have reported what they met."""
    store = dist.distributed_c10d._get_default_store()
    reported = [f"{name}/{rank}" for rank in range(2)]
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=0)
    engine = world.attach(model, optimizer, {"algorithm": algorithm, "timeout_seconds": 2})
    met: Exception | None = None
    try:
        for step in range(6):
            if world.rank == 2 and step == at_step:
                store.wait(reported, timedelta(seconds=60))
                return None
            take_step(case.local_loss(model, step, world.rank), optimizer)
    except Exception as error:
        met = error
        return type(error).__name__, str(error)
    finally:
        if world.rank != 2:
            store.set(reported[world.rank], "")
        engine.fail(met or RuntimeError("leaving"))
    return "nothing", ""


@pytest.mark.parametrize("algorithm", [LOCAL, pytest.param("bsp", marks=pytest.mark.slow)])
def test_a_rank_that_stops_is_named_within_the_time_limit(algorithm):
    for kind, message in on_gloo(leave_early, 3, algorithm, 2, str(uuid.uuid4()))[:2]:
        assert kind == "RankLostError", message
        assert "rank 2" in message
        assert "rule" in message


def fail_inside(world: World, algorithm):
    """Rank 1's own code raises in the middle of an epoch; the others must not wait for ever."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=0)
    with world.attach(model, optimizer, {"algorithm": algorithm, "timeout_seconds": 5}):
        for step in range(6):
            loss = case.local_loss(model, step, world.rank)
            if world.rank == 1 and step == 3:
                raise KeyError("the user's own mistake")
            take_step(loss, optimizer)


@pytest.mark.parametrize("algorithm", ["bsp", LOCAL], ids=["bsp", "local_sgd"])
def test_an_exception_in_the_loop_reaches_its_author_and_the_peers(algorithm):
    errors = errors_of(fail_inside, 3, algorithm)
    assert errors[1][0] == "KeyError"
    for rank in (0, 2):
        kind, message = errors[rank]
        assert kind == "RankLostError"
        assert "rank 1" in message


def average_alone(world: World):
    """Rank 1 asks for the average where the others exchange gradients of the same size."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = make_optimizer("plain", model)
    config = {"algorithm": "bsp", "debug": True, "timeout_seconds": 5}
    with world.attach(model, optimizer, config) as engine:
        for step in range(4):
            if world.rank == 1 and step == 2:
                with engine.averaged():
                    pass
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()


def test_ranks_that_issue_different_operations_are_an_error_in_debug_mode():
    errors = errors_of(average_alone, 3)
    assert set(errors) == {0, 1, 2}
    for kind, message in errors.values():
        assert kind == "CommunicationError", message
    assert any("step 2" in message for _, message in errors.values())


def not_finite(world: World, algorithm, where: str, value: float) -> None:
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=0)
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(6):
            loss = case.local_loss(model, step, world.rank)
            if world.rank == 1 and step == 3 and where == "gradient":
                loss = loss + value * model[2].bias.sum()
            loss.backward()
            if world.rank == 1 and step == 3 and where == "parameter":
                with torch.no_grad():
                    model[2].bias[4] = value
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("algorithm", "where"),
    [
        ("bsp", "gradient"),
        (LOCAL, "parameter"),
        (LOCAL, "gradient"),
        ({"name": "diloco", "steps": 2}, "parameter"),
    ],
)
def test_a_value_that_is_not_finite_is_named_on_every_rank(algorithm, where, value):
    errors = errors_of(not_finite, 3, algorithm, where, value)
    assert set(errors) == {0, 1, 2}
    for kind, message in errors.values():
        assert kind == "NonFiniteError", message
        assert "2.bias" in message


def own_collectives(world: World, algorithm):
    """The user reduces on the default group wherever they like, between and inside steps."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    sums = []
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(8):
            loss = case.local_loss(model, step, world.rank)
            handle_value = torch.full((50,), float(world.rank + step))
            handle = dist.all_reduce(handle_value, async_op=True)  # in flight during backward
            loss.backward()
            value = torch.tensor([float(world.rank)])
            dist.all_reduce(value)
            optimizer.step()
            dist.barrier()
            handle.wait()
            optimizer.zero_grad()
            sums.append((float(value), float(handle_value[0])))
    return sums, values(model)


@pytest.mark.every_other("algorithm", "debug")
@pytest.mark.parametrize("algorithm", ["bsp", LOCAL], ids=["bsp", "local_sgd"])
def test_the_users_collectives_do_not_mix_with_the_engines(algorithm, debug):
    expected = (
        references.bsp(simulated_workers(3), 8)
        if algorithm == "bsp"
        else references.local_sgd(simulated_workers(3), 8, 2)
    )
    results = run_ranks(in_rank_process, 3, own_collectives, 3, (algorithm,), debug=debug)
    for sums, end in results:
        assert sums == [(3.0, 3.0 + 3 * step) for step in range(8)]
        assert abs(end - expected[-1][0]).max() < 1e-9

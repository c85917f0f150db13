"""A rank is lost when some of the others have ended what all do together, and some have not."""

from __future__ import annotations

import json

import pytest

from tests.faults.small_script import BEGIN, kept_store
from tests.ranks import launch_script

pytestmark = [pytest.mark.ranks, pytest.mark.faults]

SCRIPT = (
    BEGIN
    + """
from relaxcomm.errors import RankLostError
from relaxcomm.network.torch_distributed import TorchTransport

meet, is_torn, calls, told = TorchTransport.meet, False, 0, None
spared = 1 if WHEN == "mean" else 0  # the end of coming to rest, in close()

def torn(transport, event, step=None):
    global spared
    meet(transport, event, step)
    if is_torn and event == "the end of what all do together":
        spared -= 1
        if spared >= 0:
            return
        if rank == LOST:
            end(0.5)
        if rank == DEAF:
            time.sleep(1)
            raise RankLostError("the others have met, and this rank has not heard of it")

def together():
    global calls
    calls += 1
    return engine.world.gather(rank, "a comparison")

TorchTransport.meet = torn
elastic = {"membership": {"elastic": True}, "timeout_seconds": 30}
config = {"algorithm": ALGORITHM, "bucket_bytes": 2000, **elastic}
with relaxcomm.attach(model, optimizer, config) as engine:
    for step in range(12):
        x = torch.randn(16, 20)
        (model(x)[:, 0] - torch.tanh(x[:, 0])).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 5:
            own = total()
            is_torn = WHEN in ("together", "averaged")
            if WHEN == "together":
                told = engine.together(together)
            elif WHEN == "loaded":
                trained = {name: value.clone() for name, value in model.state_dict().items()}
                model.load_state_dict({name: value + 1.0 for name, value in trained.items()})
                if rank == LOST:
                    end(0.5)
                told = engine.together(together)
                model.load_state_dict(trained)
            elif WHEN in ("averaged", "inside"):
                with engine.averaged():
                    mean = total()
                    is_torn = False
                    if WHEN == "inside" and rank == LOST:
                        end(0.5)
                    told = engine.together(together)
                after = total()
                if WHEN == "averaged":
                    assert after == own, "this rank's own comes back"
            is_torn = False
    is_torn = WHEN == "mean"
    if WHEN in ("close", "switch", "same"):
        told = {name: torch.full_like(value, 0.25) for name, value in model.state_dict().items()}
        if WHEN == "same":  # as rank 1 has them, where the load changes nothing
            own = {name: value.clone() for name, value in model.state_dict().items()}
            told = engine.together(lambda: engine.world.gather(own, "the weights"))[1]
        model.load_state_dict(told)
        if rank == LOST:
            end(0.5)
        if WHEN == "switch":
            engine.switch("bsp")
if WHEN in ("close", "switch", "same"):
    told = all(torch.allclose(told[name], value) for name, value in model.state_dict().items())
print(json.dumps({"told": told, "calls": calls, "steps": engine.statistics["steps"], "sum": total(),
                  "shown": [mean, after] if WHEN in ("averaged", "inside") else None}))
"""
)


def launch(algorithm, when, size, deaf=0):
    """How the ranks end that are left, see `run`."""
    store = kept_store()
    settings = {"PORT": store.port, "ALGORITHM": algorithm, "WHEN": when, "DEAF": deaf, "LOST": size - 1}
    done = launch_script(SCRIPT, size, 60, arguments=[json.dumps(settings)])
    del store
    return done[: size - 1]


def run(algorithm, when: str, *, size: int = 4, deaf: int = 0):
    """What the ranks that are left print.

    Args:
        algorithm: as YAML has it.
        when: in which event the last rank is lost.
        size: number of ranks.
        deaf: the one that has not heard of the end of the event.
    """
    left = launch(algorithm, when, size, deaf)
    assert [one.returncode for one in left] == [0] * len(left), "\n".join(one.stderr for one in left)
    found = [json.loads(one.stdout) for one in left]
    assert len({one["sum"] for one in found}) == 1
    assert {one["steps"] for one in found} == {12}
    return found


LOCAL = {"name": "local_sgd", "steps": 4}


@pytest.mark.parametrize("algorithm", ["bsp", LOCAL])
def test_who_has_met_all_and_who_has_not_heard_of_it_go_on(algorithm):
    for one in run(algorithm, "together"):
        assert (one["told"], one["calls"]) == ([0, 1, 2, 3], 1), "what the lost one has told is there, too"


def test_all_that_are_left_evaluate_the_same_mean():
    shown = [one["shown"] for one in run(LOCAL, "averaged")]
    assert len({mean for mean, _ in shown}) == 1


def test_those_who_hold_the_mean_give_nobody_that_for_their_own():
    """The mean of three equal replicas is not theirs bit for bit."""
    run("bsp", "averaged", size=3, deaf=1)


@pytest.mark.parametrize("algorithm", [LOCAL, "choco_sgd"])
def test_a_loss_while_the_mean_is_evaluated(algorithm):
    """Rules that keep copies of neighbours begin anew from what all hold then."""
    found = run(algorithm, "inside")
    assert [one["told"] for one in found] == [[0, 1, 2]] * 3
    after = {one["shown"][1] for one in found}
    assert len(after) == (1 if algorithm == "choco_sgd" else 3)


@pytest.mark.parametrize("algorithm", [{"name": "diloco", "steps": 4}, "bsp"])
def test_a_loss_while_loaded_weights_are_evaluated(algorithm):
    """They are put back after it, which is no progress: training goes on from where it was."""
    assert [one["told"] for one in run(algorithm, "loaded")] == [[0, 1, 2]] * 3


@pytest.mark.parametrize("algorithm", ["sgp", "ssp"])
def test_weights_that_are_evaluated_are_not_taken_for_what_all_begin_anew_from(algorithm):
    for one in launch(algorithm, "loaded", 4):
        assert one.returncode == 1
        assert "CommunicationError: ranks were lost while load_state_dict() had changed 4.bias" in one.stderr
        assert f"on ranks [0, 1, 2] since the last step, which {algorithm}, to go on" in one.stderr


@pytest.mark.parametrize("when", ["close", "switch", "same"])
def test_what_all_have_loaded_at_the_end_is_what_those_that_are_left_end_with(when):
    assert [one["told"] for one in run("ssp", when)] == [True] * 3


@pytest.mark.parametrize("algorithm", ["ssp", {"name": "heloco", "steps": 2}, "choco_sgd"])
def test_a_loss_after_the_mean_was_taken_leaves_it_to_those_that_are_left(algorithm):
    run(algorithm, "mean", deaf=-1)

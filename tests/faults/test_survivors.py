"""A rank is lost in the middle of a run: the others go on within seconds, and nothing comes apart."""

from __future__ import annotations

import json

import pytest

from tests.faults.small_script import BEGIN, kept_store
from tests.ranks import launch_script

pytestmark = pytest.mark.ranks

SIZE, STEPS, LOST_AT = 4, 40, 14
GRACE_SECONDS, LATE_SECONDS = 3, 4.5

SCRIPT = (
    BEGIN
    + """
import threading

def lose():
    if HOW == "late":
        return time.sleep(LATE_SECONDS)
    if HOW == "raise":
        raise KeyError("mine")
    end()

def loss_on(count):
    x = torch.randn(count, 20).to(DEVICE)
    return (model(x)[:, 0] - torch.tanh(x[:, 0])).square().mean()

if HOW == "backward" and rank == LOST:
    model[0].weight.register_hook(lambda gradient: lose() if step == LOST_AT else None)
longest = 0.0
with relaxcomm.attach(model, optimizer, CONFIG) as engine:
    first = loss_on(400).item()
    for step in range(STEPS):
        if HOW != "backward" and rank == LOST and step == LOST_AT:
            lose()
        if step == STEPS - 1:
            hidden = engine.statistics["hidden_communication_seconds"]
            time.sleep(0.3)
        begin = time.monotonic()
        optimizer.zero_grad()
        loss_on(16).backward()
        optimizer.step()
        longest = max(longest, time.monotonic() - begin)
    hidden = engine.statistics["hidden_communication_seconds"] - hidden  # in the last step
    with engine.averaged():
        last = loss_on(400).item()
    steps = engine.statistics["steps"]
    copies = engine.world.size
serving = [one.name for one in threading.enumerate() if one.name.startswith("relaxcomm-service")]
print(json.dumps({"steps": steps, "ranks": copies, "first": first, "last": last, "longest": longest,
                  "hidden": hidden, "serving": serving, "sum": total()}))
"""
)

ALGORITHMS = {
    "bsp": {"algorithm": "bsp"},
    "local_sgd": {"algorithm": {"name": "local_sgd", "steps": 4}},
    "late": {"algorithm": {"name": "local_sgd", "steps": 4, "delay": 2}},
    "selsync": {"algorithm": {"name": "selsync", "threshold": 0.05}},
    "gaussiank_sgd": {"algorithm": {"name": "gaussiank_sgd", "density": 0.1}},
    "diloco": {"algorithm": {"name": "diloco", "steps": 4}},
    "streaming_diloco": {"algorithm": {"name": "streaming_diloco", "steps": 8, "fragments": 2}},
    "d_psgd": {"algorithm": "d_psgd", "topology": "ring"},
    "choco_sgd": {"algorithm": "choco_sgd", "topology": "ring"},
    "bytegrad": {"algorithm": "bytegrad"},
    "ssp": {"algorithm": {"name": "ssp", "staleness": 2}},
    "async_model_average": {"algorithm": "async_model_average"},
    "ad_psgd": {"algorithm": "ad_psgd"},
    "decoupled_diloco": {"algorithm": {"name": "decoupled_diloco", "steps": 4}},
    "heloco": {"algorithm": {"name": "heloco", "steps": 4}},
}
SERVED = ("ssp", "async_model_average", "ad_psgd", "decoupled_diloco", "heloco")


def lose(name: str, *, lost: int = 1, how: str = "step", device: str = "cpu", **membership: float):
    """What the ranks that are left print, and what all of them say on their way."""
    store = kept_store()
    more = {"membership": {"elastic": True, **membership}, "bucket_bytes": 8_000, "timeout_seconds": 30}
    config = {**ALGORITHMS[name], **more, "drift_guard": {"every_steps": 3}}
    settings = {"PORT": store.port, "CONFIG": config, "LOST": lost, "HOW": how, "DEVICE": device}
    settings |= {"STEPS": STEPS, "LOST_AT": LOST_AT, "LATE_SECONDS": LATE_SECONDS}
    done = launch_script(SCRIPT, SIZE, 100, arguments=[json.dumps(settings)])
    del store
    left = [one for rank, one in enumerate(done) if rank != lost]
    errors = "\n".join(one.stderr for one in done)
    assert [one.returncode for one in left] == [0] * len(left), errors
    assert "terminate called" not in errors
    return [json.loads(one.stdout) for one in left], errors


def check(found, errors, *, lost: int = 1):
    assert [one["steps"] for one in found] == [STEPS] * (SIZE - 1)
    assert [one["ranks"] for one in found] == [SIZE - 1] * (SIZE - 1)
    assert len({one["sum"] for one in found}) == 1, "close() ends with the same model everywhere"
    assert not any(one["serving"] for one in found), "threads of services are left"
    assert "has never exchanged" not in errors
    assert all(one["last"] < 0.5 * one["first"] for one in found)
    assert f"worker {lost} " in errors
    assert f"{SIZE - 1} ranks go on from step" in errors
    # Two seconds beyond noticing on a quiet machine.
    assert all(one["longest"] < 15 for one in found)


@pytest.mark.parametrize("name", ["bsp", "ssp", "d_psgd"])
def test_those_who_are_left_go_on(name):
    found, errors = lose(name)
    check(found, errors)
    if name == "bsp":  # what was lost is on its way no more; the others' exchanges hide
        assert all(one["hidden"] < 0.3 for one in found)


def test_rank_0_may_be_lost_in_the_middle_of_an_exchange():
    check(*lose("gaussiank_sgd", lost=0, how="backward"), lost=0)


def test_a_rank_that_raises_is_left_behind():
    found, errors = lose("selsync", lost=2, how="raise")
    check(found, errors, lost=2)
    assert "worker 2 failed: KeyError: 'mine': 3 ranks go on" in errors


def test_ranks_with_gpus_go_on():
    """Over NCCL and on GPUs that are pretended: the host waits, so that nothing broken is applied."""
    check(*lose("bsp", how="backward", device="cuda"))


@pytest.mark.faults
@pytest.mark.parametrize("name", ["bsp", "diloco"])
def test_a_late_rank_is_not_lost_but_its_step_which_is_told(name):
    found, errors = lose(name, how="late", grace_seconds=GRACE_SECONDS)
    assert [one["ranks"] for one in found] == [SIZE] * (SIZE - 1)
    assert len({one["sum"] for one in found}) == 1
    told = (
        "relaxcomm: a rank was late, so what was under way is given up, but none is lost: 4 ranks go on from"
    )
    assert errors.count(told) == 1


@pytest.mark.faults
@pytest.mark.parametrize("name", ALGORITHMS)
def test_ranks_with_gpus_go_on_with_every_kind_of_algorithm(name):
    check(*lose(name, device="cuda"))


@pytest.mark.faults
@pytest.mark.parametrize("how", ["step", "backward"])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_kind_of_algorithm_goes_on(name, lost, how):
    check(*lose(name, lost=lost, how=how), lost=lost)

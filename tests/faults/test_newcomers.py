"""Workers join a run that trains already: they get its state, and from then on they are ranks like others."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import psutil
import pytest

from relaxcomm.network import elastic_store
from tests.faults import elastic_job, test_survivors
from tests.faults.elastic_job import LIMIT_SECONDS
from tests.faults.small_script import BEGIN

pytestmark = pytest.mark.ranks

SIZE, MORE = 3, 40
ALGORITHMS = {
    **{name: one for name, one in test_survivors.ALGORITHMS.items() if name not in test_survivors.SERVED},
    "adaptive_local_sgd": {
        "algorithm": {"name": "adaptive_local_sgd", "steps": 3, "tolerance": 0.3, "max_batch_size": 12}
    },
}

SCRIPT = (
    BEGIN
    + """
x = torch.randn(240, 20, generator=torch.Generator().manual_seed(3))
data = torch.utils.data.TensorDataset(x, torch.tanh(x[:, :1]), torch.arange(len(x)))

def loss_on(x, y):
    return torch.nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))

first, seen, changed = loss_on(x, torch.tanh(x[:, :1])).item(), [], False
if ENDS_AT_HANDOVER == rank:
    from relaxcomm.engine.membership import admission
    admission.hand_over = lambda *arguments: end()
with relaxcomm.attach(model, optimizer, CONFIG) as engine:
    begin, loader = engine.step, engine.loader(data, batch_size=4)
    since = begin if joins and engine.world.size > SIZE else None
    while since is None or engine.step < since + MORE:
        epoch = loader.epoch
        for inputs, targets, places in loader:
            if [rank, engine.step] == STOP_AT:
                os.kill(os.getpid(), signal.SIGSTOP)
            before = engine.step
            optimizer.zero_grad()
            loss_on(inputs, targets).backward()
            optimizer.step()
            seen.append((epoch, places.tolist()))
            time.sleep(0.01)
            changed = changed or engine.world.size < SIZE or engine.step > before + 1 or not STOP_AT
            if since is None and changed and engine.world.size == (SIZE if STOP_AT else SIZE + 1):
                since = engine.step
            if since is not None and engine.step >= since + MORE:
                break
    with engine.averaged():
        last = loss_on(x, torch.tanh(x[:, :1])).item()
    found = {"begin": begin, "steps": engine.statistics["steps"], "ranks": engine.world.size, "first": first}
print(json.dumps({**found, "last": last, "sum": total(), "seen": seen}))
"""
)


class Job(elastic_job.Job):
    """A run of an algorithm, which some join, and in which one may stop at a step."""

    def __init__(
        self,
        name: str,
        *,
        stop_at: tuple[int, int] | None = None,
        ends_at_handover: int | None = None,
        device: str = "cpu",
        **membership: object,
    ) -> None:
        more = {"bucket_bytes": 8_000, "timeout_seconds": 30, "drift_guard": {"every_steps": 3}}
        config = {**ALGORITHMS[name], **more, "membership": {"elastic": True, **membership}}
        told = {"STOP_AT": stop_at, "ENDS_AT_HANDOVER": ends_at_handover, "DEVICE": device}
        super().__init__(SCRIPT, SIZE, CONFIG=config, SIZE=SIZE, MORE=MORE, **told)

    def end(self, *, killed: int | None = None):
        found, errors = super().end(killed=killed)
        assert len({one["steps"] for one in found}) == 1
        return found, errors


def read_once(found) -> None:
    """No sample comes twice in an epoch; all come but those of the last epoch, which was left."""
    epochs: dict[int, list[int]] = {}
    for one in found:
        for epoch, places in one["seen"]:
            epochs.setdefault(epoch, []).extend(places)
    for epoch, places in epochs.items():
        assert max(Counter(places).values()) == 1, epoch
        assert epoch == max(epochs) or len(places) == 240, (epoch, len(places))


CASES = [(name, device) for device in ("cpu", "cuda") for name in ALGORITHMS]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param(*one, marks=() if one == ("bsp", "cpu") else pytest.mark.faults, id="-".join(one))
        for one in CASES
    ],
)
def test_a_worker_joins(name, device):
    """Its state comes over the host; GPUs and NCCL between them are pretended."""
    job = Job(name, device=device)
    job.join()
    found, errors = job.end()
    assert [one["ranks"] for one in found] == [SIZE + 1] * (SIZE + 1)
    assert found[-1]["begin"] > 0
    assert found[-1]["begin"] + len(found[-1]["seen"]) == found[0]["steps"]
    assert f"worker {SIZE} joins: {SIZE + 1} ranks go on from step" in errors
    read_once(found)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["bsp", "local_sgd", "diloco", "gaussiank_sgd", "d_psgd"])
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_worker_that_was_stopped_joins_again(name, stopped):
    job = Job(name, stop_at=(stopped, 15), grace_seconds=2)
    while psutil.Process(job.ranks[stopped].process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.1)
    time.sleep(6)
    os.kill(job.ranks[stopped].process.pid, signal.SIGCONT)
    found, errors = job.end()
    assert [one["ranks"] for one in found] == [SIZE] * SIZE
    assert f"worker {stopped} is stopped" in errors
    assert f"worker {SIZE} joins" in errors


@pytest.mark.faults
def test_who_has_another_secret_does_not_join(monkeypatch):
    monkeypatch.setenv("RUN_SECRET", "what all of them share")
    job = Job("local_sgd", secret={"env": "RUN_SECRET"})
    job.join(RUN_SECRET="what nobody else has got")
    refused = job.ranks.pop().finish(time.monotonic() + LIMIT_SECONDS)
    assert "ForgeryError" in refused.stderr, refused
    job.join()
    found, errors = job.end()
    assert [one["ranks"] for one in found] == [SIZE + 1] * (SIZE + 1)
    assert "ForgeryError" not in errors


@pytest.mark.faults
@pytest.mark.parametrize("name", ["bsp", "streaming_diloco"])
def test_two_join_and_one_is_killed(name):
    job = Job(name)
    elastic_store.find(job.store, job.address, LIMIT_SECONDS)  # it has begun
    time.sleep(0.5)
    job.ranks[0].process.kill()
    job.join()
    job.join()
    found, errors = job.end(killed=0)
    assert [one["ranks"] for one in found] == [SIZE + 1] * (SIZE + 1)
    assert "has ended without a message" in errors


@pytest.mark.faults
def test_who_would_hand_over_is_killed_and_they_ask_again():
    job = Job("local_sgd", ends_at_handover=0)
    job.join()
    job.join()
    found, errors = job.end(killed=0)
    assert [one["ranks"] for one in found] == [SIZE + 1] * (SIZE + 1)
    assert "joining was broken off, so it asks again: rank " in errors

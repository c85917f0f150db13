"""Checkpoints of a run that loses a rank: those that are left save, and no kill spoils the newest one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relaxcomm.checkpoint.manifest import checkpoints
from tests.faults.small_script import BEGIN, kept_store
from tests.ranks import launch_script

pytestmark = [pytest.mark.ranks, pytest.mark.faults]

SIZE = 3

SCRIPT = (
    BEGIN
    + """
from relaxcomm.checkpoint import writing
from relaxcomm.checkpoint.periodic import Checkpoints
from relaxcomm.config import CheckpointConfig
from relaxcomm.network.operations import AllReduce
from relaxcomm.network.process_groups import Groups

def ending(write):
    def act(self, *args):
        if rank in LOST and f"step-{AT:08d}" in str(self._writer.path):
            end(0.5)
        if rank in LOST and WHEN == "torn" and "step-00000010" in str(self._writer.path):
            time.sleep(60)  # it will not come to its end
        return write(self, *args)
    return act

def torn(groups, operation, *wait):
    # Rank 0 never has the last exchange's result, which the others have.
    works, result = start(groups, operation, *wait)
    if rank == 0 and isinstance(operation, AllReduce) and engine.step == AT - 1:
        works = [*works, groups._host.recv([torch.empty(1)], LOST[0], 99)]
    return works, result

if WHEN == "torn":
    start, Groups.start = Groups.start, torn
for act in {"step": (), "": (), "torn": ("write",)}.get(WHEN, (WHEN,)):
    setattr(writing.Writing, act, ending(getattr(writing.Writing, act)))
config = {"algorithm": ALGORITHM, "membership": {"elastic": True}, "timeout_seconds": 30}
with relaxcomm.attach(model, optimizer, config) as engine:
    saving = Checkpoints(engine, CheckpointConfig(path=FOLDER, every_steps=5), {})
    saving.resume()
    begun = engine.statistics["steps"]
    while engine.statistics["steps"] < STEPS:
        if WHEN in ("step", "torn") and rank in LOST and engine.statistics["steps"] == AT:
            end(0.5)
        x = torch.randn(16, 20)
        (model(x)[:, 0] - torch.tanh(x[:, 0])).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        saving.step()
    saving.finish()
    found = {"begun": begun, "ranks": engine.world.size, "steps": engine.statistics["steps"]}
print(json.dumps({**found, "sum": total()}))
"""
)


def run(
    folder: Path, algorithm, steps: int, *, lost: tuple[int, ...] = (), at: int = 0, when: str = "", size=SIZE
):
    """What those that are left print; the others are killed after `at` steps, or while they write these."""
    store = kept_store()
    settings = {"PORT": store.port, "ALGORITHM": algorithm, "FOLDER": str(folder), "STEPS": steps}
    settings |= {"LOST": lost, "AT": at, "WHEN": when}
    done = launch_script(SCRIPT, size, 100, arguments=[json.dumps(settings)])
    del store
    left = [rank for rank in range(size) if rank not in lost]
    errors = "\n".join(one.stderr for one in done)
    assert [done[rank].returncode for rank in left] == [0] * len(left), errors
    assert "terminate called" not in errors
    return [json.loads(done[rank].stdout) for rank in left], errors


@pytest.mark.parametrize(
    ("algorithm", "lost", "at", "when"),
    [
        ("bsp", 1, 7, "step"),
        ({"name": "gaussiank_sgd", "density": 0.1}, 0, 10, "plan"),
        ({"name": "local_sgd", "steps": 4}, 1, 10, "write"),
        ({"name": "local_sgd", "steps": 4}, 0, 10, "finish"),
        ({"name": "local_sgd", "steps": 4}, 1, 12, "torn"),
    ],
)
def test_those_who_are_left_save_and_go_on_from_it(tmp_path, algorithm, lost, at, when):
    found, errors = run(tmp_path, algorithm, 20, lost=(lost,), at=at, when=when)
    assert [(one["ranks"], one["steps"]) for one in found] == [(SIZE - 1, 20)] * (SIZE - 1)
    kept = checkpoints(tmp_path)
    assert [(one.manifest.step, one.manifest.world_size) for one in kept] == [(15, 2), (20, 2)], errors
    assert not list(tmp_path.glob("*.partial"))
    again, errors = run(tmp_path, algorithm, 22, size=2)
    assert [one["begun"] for one in again] == [20, 20]
    assert f"goes on from {kept[-1].folder}" in errors
    more, errors = run(tmp_path, algorithm, 24, size=3)  # what two have saved, three go on from
    assert [one["begun"] for one in more] == [20, 20, 20]


@pytest.mark.parametrize("when", ["plan", "write"])
def test_a_kill_of_all_while_saving_leaves_the_newest_one_whole(tmp_path, when):
    run(tmp_path, "bsp", 20, lost=(0, 1, 2), at=10, when=when)
    assert [one.manifest.step for one in checkpoints(tmp_path)] == [5]
    found, errors = run(tmp_path, "bsp", 12)
    assert [one["begun"] for one in found] == [5, 5, 5], errors
    assert [one.manifest.step for one in checkpoints(tmp_path)] == [5, 10]
    assert not list(tmp_path.glob("*.partial"))

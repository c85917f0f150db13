"""A run that nobody closes: its log has an end all the same, and rank 0 says that replicas may differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.monitoring.harness import read_log

SCRIPT = """
import os, sys
import torch, relaxcomm
left = []
def train(group):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": sys.argv[1], "output": sys.argv[2], "metrics": {"port": None}}
    engine = relaxcomm.attach(model, optimizer, config, process_group=group)
    left.append((model, optimizer, engine))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if "close" in sys.argv:
        engine.close()
relaxcomm.simulate(train, 3)
"""
FORKED = "if not os.fork(): sys.exit()\nos.wait()"
COLLECTED = """
import gc, weakref
models = [weakref.ref(model) for model, *_ in left]
if not os.fork():
    left.clear(), gc.collect(), sys.exit()
os.wait()
left.clear(), gc.collect()
assert not any(model() for model in models), "a model is kept"
"""
SAID = "relaxcomm: the engine was never closed, so ranks may end with different models; call engine.close() "


@pytest.mark.parametrize(
    ("algorithm", "end", "said", "status"),
    [
        ("local_sgd", FORKED, 1, "not closed"),
        ("local_sgd", COLLECTED + FORKED, 1, "not closed"),
        pytest.param("bsp", "", 0, "not closed", marks=pytest.mark.slow),
        pytest.param("local_sgd", COLLECTED, 0, "closed at step 1", marks=pytest.mark.slow),
        ("local_sgd", "raise KeyError('of the user')", 0, "failed: KeyError: 'of the user'"),
        pytest.param("local_sgd", "", 0, "closed at step 1", marks=pytest.mark.slow),
    ],
    ids=["differs", "collected", "equal", "closed and collected", "failed", "closed"],
)
def test_at_exit_the_log_is_ended_and_what_may_differ_is_said_once(tmp_path, algorithm, end, said, status):
    arguments = [algorithm, str(tmp_path), *(["close"] if status.startswith("closed") else [])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + end, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr.count(SAID) == said, done.stderr
    assert "AssertionError" not in done.stderr
    first, *_, last = read_log(tmp_path, 0)
    assert first["world_size"] == 3
    assert (last["summary"]["status"], last["summary"]["steps"]) == (status, 1)

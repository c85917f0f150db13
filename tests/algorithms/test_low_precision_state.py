"""Under a GradScaler, low-precision algorithms train as without, and overflows leave their state alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.algorithms.test_sparse_algorithms import rules
from tests.engine.harness import engine_state, in_process, train, values
from tests.models import CASES, make_optimizer

STEPS = 14
CONFIGS = {
    "bytegrad": {"name": "bytegrad"},
    "ef_signsgd": {"name": "ef_signsgd"},
    "powersgd": {"name": "powersgd", "matrix_rank": 1},
    "ef21": {"name": "ef21", "density": 0.1},
    "qadam": {"name": "qadam", "warmup_steps": 5},
    "demo": {"name": "demo", "num_kept": 3, "chunk_size": 5},
    "two-sided": rules({"error_feedback": "sign"}, {"scatter_gather": {"server_feedback": True}}),
}


def scaled(world, algorithm, overflow_step):
    """Parameters after each step under a GradScaler; the step that overflows is to leave nothing behind."""
    model, history = CASES["toy"].model(seed=world.rank), []
    optimizer = make_optimizer("plain", model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    with world.attach(model, optimizer, {"algorithm": algorithm}, scaler=scaler) as engine:
        for step in range(STEPS):
            loss = CASES["toy"].local_loss(model, step, world.rank)
            bad = step == overflow_step and world.rank == 1
            scaler.scale(loss * float("inf") if bad else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            history.append(values(model))
        state = engine_state(engine)
    return history, [slots["compressor"] for _, _, slots in state["slots"] if "compressor" in slots]


@pytest.mark.every_other("name")
@pytest.mark.parametrize("name", ["bytegrad", "ef_signsgd", "powersgd", "ef21", "qadam", "two-sided"])
def test_a_scale_changes_nothing(name):
    expected = in_process(train, 3, {"algorithm": CONFIGS[name]}, STEPS, "plain")
    for (history, _), wanted in zip(in_process(scaled, 3, CONFIGS[name], None), expected, strict=True):
        np.testing.assert_allclose(np.stack(history), np.stack(wanted[:-1]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["bytegrad", "signsgd", "ef_signsgd", "powersgd", "ef21", "qadam", "demo"])
def test_an_overflow_is_skipped_by_all_and_leaves_no_trace(name):
    for history, slots in in_process(scaled, 3, CONFIGS.get(name, name), 6):
        np.testing.assert_array_equal(history[6], history[5])
        assert np.isfinite(history[-1]).all()
        assert np.abs(history[-1] - history[6]).max() > 0
        assert all(torch.isfinite(slot).all() for one in slots for slot in one.values())

"""MuLoCo as docs/composing.md has it: Muon and AdamW inside, two bits with error feedback outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import relaxcomm
from relaxcomm.tasks import digits
from tests.models import CASES, SEEDING

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon is in torch from 2.9 on")
PAGE = Path(__file__).parents[2] / "docs" / "composing.md"


def recipe(steps: int) -> dict:
    """The page's YAML, with a shorter round."""
    text = PAGE.read_text(encoding="utf-8").partition("## Muon inside, two bits outside")[2]
    config = yaml.safe_load(text.partition("```yaml")[2].partition("```")[0])
    config["algorithm"]["rules"][0]["trigger"] = {"every": {"steps": steps}}
    return config


def inside(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest."""
    parameters = list(model.parameters())
    return [
        torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=0.02),
        torch.optim.AdamW([p for p in parameters if p.ndim != 2], lr=3e-3),
    ]


def on_digits(group, config, epochs):
    """Held-out accuracy before and after, and the bytes that the exchanges sent."""
    with SEEDING:
        task = digits.make(0, dropout=0.0, hidden=(64,))
    optimizers = inside(task.model)
    before = task.evaluate(task.model)
    with relaxcomm.attach(task.model, optimizers, config, process_group=group) as engine:
        begun = engine.statistics["bytes_sent"]
        for _ in range(epochs):
            for batch in engine.loader(task.train_data, batch_size=16):
                task.loss(task.model, batch).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        sent = engine.statistics["bytes_sent"] - begun
        exchanges = engine.statistics["synchronisations"]
    return before, task.evaluate(task.model), sent / exchanges


def test_it_trains_on_three_workers_with_a_sixteenth_of_the_bytes():
    found = relaxcomm.simulate(lambda group: on_digits(group, recipe(10), 6), 3)
    dense = sum(p.numel() for p in digits.make(0, dropout=0.0, hidden=(64,)).model.parameters()) * 4
    for before, after, sent in found:
        assert before < 0.3
        assert after > 0.9  # Muon's matrices are bfloat16: processors that multiply these round in other ways
        assert sent / 2 < dense / 14  # to each of the two others: 2 of 32 bits, and the levels
    assert len({after for _, after, _ in found}) == 1


def toy(group, config, steps):
    """The parameters after each step, trained by both optimizers."""
    case, history = CASES["toy"], []
    model = case.model(seed=0)
    optimizers = inside(model)
    with relaxcomm.attach(model, optimizers, config, process_group=group):
        for step in range(steps):
            case.local_loss(model, step, group.rank()).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            history.append(flat(model))
    return history


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def reference(size, steps, period, code, lr=0.7, momentum=0.9):
    """Muon and AdamW by hand in each worker; deltas are coded with what was left before (numpy)."""
    case = CASES["toy"]
    models = [case.model(seed=0) for _ in range(size)]
    optimizers = [inside(model) for model in models]
    outer = flat(models[0]).astype(np.float64)
    rest, velocity, history = np.zeros((size, len(outer))), np.zeros_like(outer), []
    for step in range(steps):
        for rank, model in enumerate(models):
            case.local_loss(model, step, rank).backward()
            for optimizer in optimizers[rank]:
                optimizer.step()
                optimizer.zero_grad()
        if (step + 1) % period == 0:
            whole = rest + np.stack([outer - flat(model) for model in models])
            sent = np.stack([code(row) for row in whole])
            rest, delta = whole - sent, sent.mean(axis=0)
            velocity = momentum * velocity + delta
            outer = outer - lr * (delta + momentum * velocity)
            for model in models:
                torch.nn.utils.vector_to_parameters(torch.from_numpy(outer.copy()), model.parameters())
        history.append(np.stack([flat(model) for model in models]))
    return history


def two_bits(row, sizes=(66, 11, 99, 9, 36, 4)):
    """Four levels from the least to the greatest entry of the bucket's one block, last tensor first."""
    step = (row.max() - row.min()) / 3
    return row.min() + np.floor((row - row.min()) / step + 0.5) * step


@pytest.mark.parametrize("size", [3, 5])
def test_it_equals_its_reference(size):
    config = {**recipe(4), "bucket_bytes": 1 << 20}
    config["algorithm"]["rules"][0]["compressor"] = {
        "error_feedback": {"quantize": {"bits": 2, "block_size": 1024}}
    }
    found = relaxcomm.simulate(lambda group: toy(group, config, 14), size)
    for step, rows in enumerate(reference(size, 14, 4, two_bits)):
        for rank in range(size):
            np.testing.assert_allclose(
                found[rank][step], rows[rank], rtol=0, atol=1e-6, err_msg=f"{step} {rank}"
            )

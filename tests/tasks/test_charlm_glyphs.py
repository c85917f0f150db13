"""The tasks charlm and glyphs: they learn, they are reproducible, their options are checked."""

import pytest
import torch

from relaxcomm import ConfigError
from relaxcomm.tasks import charlm
from relaxcomm.tasks.loading import load_task


def trained(task, steps, batch_size):
    """The measure before and after some steps on the first samples."""
    torch.manual_seed(0)
    task.model.eval()
    with torch.no_grad():
        before = task.evaluate(task.model)
    task.model.train()
    for step in range(steps):
        chosen = [
            task.train_data[(step * batch_size + i) * 7 % len(task.train_data)] for i in range(batch_size)
        ]
        batch = torch.utils.data.default_collate(chosen)
        task.optimizer.zero_grad()
        task.loss(task.model, batch).backward()
        task.optimizer.step()
    task.model.eval()
    with torch.no_grad():
        return before, task.evaluate(task.model)


def test_charlm_learns_and_lower_is_better():
    task = load_task({"charlm": {"width": 64, "layers": 1, "context": 32}}, seed=0)
    assert not task.higher_is_better
    before, after = trained(task, 40, 16)
    assert before == pytest.approx(7, abs=0.3)  # log2 of the number of symbols
    assert after < 4.7


def test_glyphs_learns():
    before, after = trained(load_task("glyphs", seed=0), 60, 32)
    assert before < 0.1
    assert after > 0.25


@pytest.mark.parametrize("name", ["charlm", "glyphs"])
def test_the_same_seed_makes_the_same_task_and_another_another(name):
    one, same, other = (load_task(name, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(one.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(a, b)
    first, again, different = (
        torch.as_tensor(t.train_data[5][0] if name == "glyphs" else t.train_data[5])
        for t in (one, same, other)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, different)


def test_held_out_text_is_of_other_files():
    train, test = charlm._texts()
    excerpt = bytes(test[1000:1200].tolist())
    assert excerpt not in bytes(train.tolist())
    assert int(train.max()) < 128


@pytest.mark.parametrize(
    "task", [{"charlm": {"width": 30, "heads": 4}}, {"charlm": {"layers": 0}}, {"glyphs": {"hidden": 0}}]
)
def test_wrong_options_are_refused(task):
    with pytest.raises(ConfigError):
        load_task(task, seed=0)


def test_a_wide_layer_makes_parameters_dominate():
    task = load_task({"glyphs": {"hidden": 4096}}, seed=0)
    assert sum(p.numel() for p in task.model.parameters()) > 10_000_000

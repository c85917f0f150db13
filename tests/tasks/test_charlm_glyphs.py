"""The tasks charlm and glyphs: they learn, they are reproducible, their options are checked."""

import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from relaxcomm import ConfigError
from relaxcomm.tasks import charlm, glyphs
from relaxcomm.tasks.task_loader import find_task


def trained(task, steps, batch_size):
    """The measure before and after some steps on the first samples."""
    torch.manual_seed(0)
    task.model.eval()
    with torch.no_grad():
        before = task.evaluate(task.model)
    task.model.train()
    order = torch.randperm(len(task.train_data)).split(batch_size)
    for step in range(steps):
        chosen = [task.train_data[int(index)] for index in order[step]]
        batch = torch.utils.data.default_collate(chosen)
        task.optimizer.zero_grad()
        task.loss(task.model, batch).backward()
        task.optimizer.step()
    task.model.eval()
    with torch.no_grad():
        return before, task.evaluate(task.model)


def test_charlm_learns_and_lower_is_better():
    task = find_task({"charlm": {"width": 64, "layers": 1, "context": 32}}).build(seed=0)
    assert not task.higher_is_better
    before, after = trained(task, 40, 16)
    assert before == pytest.approx(7, abs=0.3)  # log2 of the number of symbols
    assert after < 4.7


@pytest.mark.slow
def test_glyphs_learns():
    before, after = trained(find_task("glyphs").build(seed=0), 150, 32)
    assert before < 0.1
    assert after > 0.4


@pytest.mark.parametrize("name", ["charlm", "glyphs"])
def test_the_same_seed_makes_the_same_task_and_another_another(name):
    one, same, other = (find_task(name).build(seed=seed) for seed in (1, 1, 2))
    for a, b in zip(one.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(a, b)
    first, again, different = (
        torch.as_tensor(t.train_data[5][0] if name == "glyphs" else t.train_data[5])
        for t in (one, same, other)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, different)


def test_held_out_text_is_of_many_other_files():
    train, test = charlm._texts(Path(sysconfig.get_path("stdlib")))
    assert len(test) > 10
    assert sum(len(text) < 2000 for text in test) < len(test) / 3  # no file makes up the measure
    known = b"".join(bytes(text.tolist()) for text in train)
    held_out = [bytes(text.tolist()) for text in test]
    # The library copies a little of its own code: poplib and nntplib close alike.
    windows = [text[at : at + 100] for text in held_out for at in range(0, len(text) - 99, 50)]
    assert sum(window in known for window in windows) < 0.03 * len(windows)


def test_an_excerpt_carries_the_file_that_it_begins_in():
    excerpts = charlm.Excerpts([torch.full((count,), count) for count in (7, 1, 12)], 3, 200, seed=0)
    first = [int(excerpts[index][0]) for index in range(len(excerpts))]
    assert [(7, 1, 12)[label] for label in excerpts.labels] == first
    assert set(first) == {7, 1, 12}


def test_a_character_sees_only_what_is_before_it():
    model = find_task("charlm").build(seed=0).model
    text = torch.randint(0, 128, (2, 64))
    changed = text.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 128
    one, other = model(text), model(changed)
    torch.testing.assert_close(one[:, :40], other[:, :40])
    assert not torch.allclose(one[:, 41:], other[:, 41:])


def test_missing_source_text_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    (tmp_path / "empty.py").touch()
    with pytest.raises(ConfigError, match="standard library"):
        find_task("charlm").build(seed=0)


def test_held_out_characters_are_of_another_family():
    train, test = (set(glyphs._glyphs(part)) for part in (glyphs._TRAIN_FONTS, glyphs._TEST_FONTS))
    assert len(train) >= 12
    assert len(test) >= 4
    assert not {name[:2] for name in train} & {name[:2] for name in test}
    images, labels = glyphs._images(glyphs._TEST_FONTS, 2, (0, 1))
    assert np.bincount(labels).tolist() == [2 * len(test)] * 62
    assert images.flatten(1).amax(dim=1).min() > 0.5  # every character left ink on its picture


@pytest.mark.parametrize("module", ["matplotlib", "PIL"])
def test_missing_packages_name_the_command(monkeypatch, module):
    glyphs._glyphs.cache_clear()
    glyphs._images.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'relaxcomm\[demo\]'"):
        find_task("glyphs").build(seed=0)


@pytest.mark.parametrize(
    "task",
    [
        {"charlm": {"width": 30, "heads": 4}},
        {"charlm": {"context": 4000}},
        {"charlm": {"layers": 0}},
        {"glyphs": {"hidden": 0}},
    ],
)
def test_wrong_options_are_refused(task):
    with pytest.raises(ConfigError):
        find_task(task).build(seed=0)


def test_a_wide_layer_makes_parameters_dominate():
    task = find_task({"glyphs": {"hidden": 4096}}).build(seed=0)
    assert sum(p.numel() for p in task.model.parameters()) > 10_000_000

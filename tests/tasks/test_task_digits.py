"""The bundled digits task."""

import sys

import pytest
import torch

from relaxcomm.errors import ConfigError
from relaxcomm.tasks import digits
from relaxcomm.tasks.digits import make


def test_split_is_stratified_and_complete():
    labels = torch.stack([label for _, label in make(0).train_data])
    assert len(labels) == 1437
    held_out = torch.tensor([178, 182, 177, 183, 181, 182, 181, 179, 174, 180]) - torch.bincount(labels)
    assert held_out.sum() == 360
    assert held_out.min() >= 34
    assert held_out.max() <= 37


def test_same_seed_same_model_and_data():
    first = make(1)
    digits._images.cache_clear()
    second, other = make(1), make(2)
    for one, two in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(first.train_data.tensors[0], second.train_data.tensors[0])
    assert not torch.equal(first.train_data.tensors[0], other.train_data.tensors[0])


def test_a_plain_loop_learns():
    torch.manual_seed(0)
    task = make(0, epochs=6, hidden=(64,))
    before = task.evaluate(task.model)
    for _ in range(task.epochs):
        for batch in torch.utils.data.DataLoader(task.train_data, batch_size=task.batch_size, shuffle=True):
            task.loss(task.model, batch).backward()
            task.optimizer.step()
            task.optimizer.zero_grad()
    task.model.eval()
    assert before < 0.3
    assert task.evaluate(task.model) > 0.9


def test_missing_scikit_learn_names_the_command(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    digits._images.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'relaxcomm\[demo\]'"):
        make(0)

"""A batch in parts: an entry for each sample goes with its sample, and nothing else is cut."""

from __future__ import annotations

from collections import UserDict, namedtuple

import pytest
import torch

from relaxcomm import UsageError
from relaxcomm.data import num_samples, split_batch

Pair = namedtuple("Pair", ["x", "y"])
X, Y = torch.arange(8.0).view(4, 2), torch.arange(4)


def parts_of(batch):
    return [part for part, _ in split_batch(batch, 3)]


def test_texts_go_with_their_samples():
    first, second = parts_of({"text": ["a", "b", "c", "d"], "x": X})
    assert (first["text"], second["text"]) == (["a", "b", "c"], ["d"])
    assert second["x"].tolist() == [[6.0, 7.0]]


def test_named_tuples_stay_such():
    _, second = parts_of(Pair(X, Y))
    assert type(second) is Pair
    assert (second.x.tolist(), second.y.tolist()) == ([[6.0, 7.0]], [3])


def test_any_mapping():
    _, second = parts_of(UserDict(x=X, y=Y))
    assert second["y"].tolist() == [3]


def test_tensors_of_different_sizes():
    """Such as what is to be found in each of four images."""
    boxes = [{"boxes": torch.zeros(number, 4)} for number in (1, 0, 2, 5)]
    first, second = parts_of([X, boxes])
    assert [len(one["boxes"]) for one in first[1] + second[1]] == [1, 0, 2, 5]
    assert len(second[1]) == 1


def test_what_has_no_entry_for_each_sample_is_in_each_part():
    for part in parts_of((X, {"scale": torch.tensor(2.0), "epoch": 3, "name": "train", "classes": [1, 2]})):
        assert part[1] == {"scale": torch.tensor(2.0), "epoch": 3, "name": "train", "classes": [1, 2]}


def test_a_pair_of_pairs_is_no_list_of_samples():
    first, second = split_batch([X[:2], Y[:2]], 1)
    assert (first[0][1].tolist(), second[0][1].tolist()) == ([0], [1])


@pytest.mark.parametrize(
    "batch", [["a", "b"], {"text": ("a", "b")}, {"x": {"y": X[:2]}, "text": "ab"}], ids=str
)
def test_samples_are_counted_without_a_tensor_in_front(batch):
    assert num_samples(batch) == 2


def test_one_part_is_the_batch_itself():
    batch = {"text": ["a", "b"]}
    ((part, share),) = split_batch(batch, 2)
    assert part is batch
    assert share == 1.0


def test_a_batch_without_samples_is_refused():
    with pytest.raises(UsageError, match="of type str holds no tensor and no list"):
        num_samples("abc")

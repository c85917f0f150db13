"""A batch in parts: an entry for each sample goes with its sample, and nothing else is cut."""

from __future__ import annotations

from collections import UserDict, namedtuple
from itertools import chain

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

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


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: (one, Y), lambda one: {"x": (one,), "y": Y}])
def test_packed_sequences_are_samples_and_are_not_cut(wrap):
    batch = wrap(pack_sequence([torch.ones(5, 2), torch.ones(3, 2), torch.ones(2, 2), torch.ones(1, 2)]))
    assert num_samples(batch) == 4
    ((part, _),) = split_batch(batch, 4)
    assert part is batch
    with pytest.raises(UsageError, match="a batch with a PackedSequence cannot be cut into parts"):
        list(split_batch(batch, 3))


def test_packed_tokens_are_no_columns():
    packed = pack_sequence([torch.ones(1), torch.ones(3)], enforce_sorted=False)
    assert num_samples((packed, packed)) == 2


def image(number: int, width: int) -> torch.Tensor:
    return torch.full((3, 5, width), float(number))


def found_in(number: int) -> dict[str, torch.Tensor]:
    return {"boxes": torch.full((number, 4), float(number)), "labels": torch.full((number,), number)}


@pytest.mark.parametrize("count", [1, 2, 3, 4])  # 3: as many images as channels
def test_images_and_what_is_found_in_them_stay_whole(count):
    images = tuple(image(number, 4 + number) for number in range(count))
    found = tuple(found_in(number) for number in range(count))
    parts = list(split_batch((images, found), 1))
    assert num_samples((images, found)) == len(parts) == count
    for number, ((pictures, targets), share) in enumerate(parts):
        assert pictures[0] is images[number]
        assert targets[0] is found[number]
        assert len(pictures) == len(targets) == 1
        assert share == pytest.approx(1 / count)


@pytest.mark.parametrize("labels", [(0, 1), ("a", "b"), (torch.tensor(0), torch.tensor(1))], ids=repr)
def test_images_with_labels_stay_whole(labels):
    images = [image(0, 4), image(1, 4)]
    first, second = split_batch({"image": images, "label": labels}, 1)
    assert (first[0]["image"][0] is images[0], second[0]["image"][0] is images[1]) == (True, True)
    assert (first[0]["label"], second[0]["label"]) == (labels[:1], labels[1:])


def test_nested_fields_are_cut_in_their_first_dimension():
    """What torch's default_collate makes of samples ((a, b), (c, d))."""
    batch = [[torch.arange(6).view(3, 2), torch.arange(3)], [torch.zeros(3, 4), ["x", "y", "z"]]]
    first, second = (part for part, _ in split_batch(batch, 2))
    assert (first[0][1].tolist(), second[0][1].tolist()) == ([0, 1], [2])
    assert (first[1][1], second[1][1]) == (["x", "y"], ["z"])


SEQUENCES = [torch.zeros(5 + number, 2) for number in range(4)]


@pytest.mark.parametrize(
    "batch",
    [
        [(image(number, 4), number) for number in range(4)],
        [(image(number, 4), torch.tensor(number)) for number in range(4)],
        [(image(number, 4), found_in(3)) for number in range(4)],
        [(one, number) for number, one in enumerate(SEQUENCES)],
        [{"image": image(number, 4 + number), "id": number} for number in range(4)],
        [{"image": image(number, 4), "instances": [number]} for number in range(4)],
    ],
    ids=["number", "tensor", "found", "sequence", "mapping", "list"],
)
def test_a_list_of_samples_stays_one(batch):
    parts = [part for part, _ in split_batch(batch, 3)]
    assert num_samples(batch) == 4
    assert [len(part) for part in parts] == [3, 1]
    assert all(one is another for one, another in zip(chain(*parts), batch, strict=True))


@pytest.mark.parametrize("labels", [("a", "b", "c", "d"), (0, 1, 2, 3), tuple(found_in(3) for _ in range(4))])
def test_images_with_as_many_boxes_as_channels_stay_whole(labels):
    images = tuple(image(number, 4) for number in range(4))
    (pictures, first), (last, second) = (part for part, _ in split_batch((images, labels), 3))
    assert (pictures, first, last, second) == (images[:3], labels[:3], images[3:], labels[3:])


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (([image(number, 4) for number in range(4)],), "as fields of 3 samples or as columns of 4 samples"),
        (
            ([image(number, 4) for number in range(4)], ["a", 1, None]),
            "as fields of 3 samples or as columns of 4 samples",
        ),
        ([(one, one) for one in SEQUENCES], "as columns of 2 samples or as a list of 4 samples"),
        ([{"x": X}, {"x": X + 1}, {"x": X}], "as fields of 4 samples or as a list of 3 samples"),
    ],
    ids=["images", "images, settings", "sequences", "mappings"],
)
def test_what_can_be_read_in_several_ways_is_refused(batch, says):
    for read in (num_samples, lambda one: list(split_batch(one, 2))):
        with pytest.raises(UsageError, match=says + '; give .*{"a": batch.*{"samples": '):
            read(batch)
    assert num_samples({"samples": [{"x": one} for one in SEQUENCES]}) == 4


def boxes(*numbers: int) -> list[dict]:
    return [{"id": at, "boxes": torch.zeros(number, 4)} for at, number in enumerate(numbers)]


@pytest.mark.parametrize("numbers", [(1, 5, 2, 3), (1, 4, 2, 3), (4, 4, 4, 4)])
def test_stacked_images_keep_their_boxes_where_as_many_as_images_are_found(numbers):
    targets = boxes(*numbers)
    for wrap in (list, tuple):
        first, second = parts_of((X, wrap(targets)))
        assert all(one is another for one, another in zip([*first[1], *second[1]], targets, strict=True))
        assert (len(first[1]), len(second[1])) == (3, 1)


def test_masks_stay_those_of_one_image():
    """As Mask2Former's processor makes them; None where there are none."""
    masks = [torch.zeros(4, 8, 8), None, torch.zeros(2, 8, 8), torch.zeros(3, 8, 8)]
    first, second = parts_of({"pixel_values": X, "mask_labels": masks})
    assert all(one is another for one, another in zip(first["mask_labels"], masks[:3], strict=True))
    assert second["mask_labels"][0] is masks[3]


@pytest.mark.parametrize("labels", [Y, {"label": Y}], ids=["tensor", "mapping"])
def test_a_list_of_images_beside_a_tensor_of_labels(labels):
    images = [image(number, 4) for number in range(4)]
    for batch in ((images, labels), (labels, images), {"image": images, "label": labels}):
        parts = [list(one.values()) if isinstance(one, dict) else one for one in parts_of(batch)]
        pictures = [next(one for one in part if isinstance(one, list)) for part in parts]
        assert [len(one) for one in pictures] == [3, 1]
        assert all(one is another for one, another in zip(chain(*pictures), images, strict=True))
        assert num_samples(batch) == 4


@pytest.mark.parametrize(
    "batch",
    [(SEQUENCES[0], SEQUENCES[1]), {"x": X, "views": [torch.zeros(4, 2)] * 4}],
    ids=["tuple", "views"],
)
def test_what_may_be_cut_inside_a_sample_is_refused(batch):
    with pytest.raises(UsageError, match="can be read in several ways, as fields of"):
        list(split_batch(batch, 1))


def test_mappings_with_other_names_are_fields():
    first, second = parts_of([{"x": X}, {"y": Y}])
    assert (first[0]["x"].shape, second[1]["y"].tolist()) == ((3, 2), [3])

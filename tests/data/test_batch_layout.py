"""Batches as `default_collate` makes them, and as others do, are read as the samples they were made of."""

from __future__ import annotations

from collections import UserDict, namedtuple

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from relaxcomm import UsageError
from relaxcomm.data import num_samples, split_batch

Pair = namedtuple("Pair", ["x", "y"])
B = 5


def ids(length: int) -> torch.Tensor:
    return torch.ones(length, dtype=torch.long)


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict | UserDict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


COLLATED = {
    "tensor": lambda at: torch.full((3, 4), float(at)),
    "tensor, label": lambda at: (torch.full((3, 4), float(at)), at),
    "two views": lambda at: (torch.full((3, 4), float(at)), torch.full((3, 4), -float(at))),
    "dict": lambda at: {"x": torch.full((3,), float(at)), "text": f"{at}", "label": at},
    "dict, label": lambda at: ({"x": torch.full((3,), float(at))}, at),
    "dict, other dict": lambda at: ({"x": torch.full((3,), float(at))}, {"y": at}),
    "tokens, tokens": lambda at: ({"ids": ids(5) * at}, {"ids": ids(7) * at}),
    "three of tokens": lambda at: tuple({"ids": ids(n) * at, "mask": ids(n) > 0} for n in (5, 7, 7)),
    "text, label": lambda at: (f"{at}", at),
    "text, text, label": lambda at: (f"{at}", f"-{at}", at),
    "nested pairs of a kind": lambda at: ((torch.full((3,), float(at)), at), (torch.full((4,), 1.0), at)),
    "nested, views": lambda at: ((torch.full((3,), 1.0), at), (torch.full((3,), 2.0), torch.full((4,), 1.0))),
    "nested": lambda at: ((torch.full((3,), float(at)), at), (torch.full((4,), float(at)), f"{at}")),
    "named": lambda at: Pair(torch.full((3,), float(at)), at),
    "named dicts": lambda at: Pair({"x": torch.full((3,), float(at))}, {"x": torch.full((3,), 1.0)}),
}


@pytest.mark.parametrize("sample", COLLATED.values(), ids=COLLATED)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parts_are_what_default_collate_makes_of_their_samples(sample, size):
    samples = [sample(at) for at in range(B)]
    batch = default_collate(samples)
    assert num_samples(batch) == B
    parts = list(split_batch(batch, size))
    starts = range(0, B, size)
    for (part, share), start in zip(parts, starts, strict=True):
        assert same(part, default_collate(samples[start : start + size]))
        assert share == pytest.approx(len(samples[start : start + size]) / B)


def image(at: int, width: int = 4) -> torch.Tensor:
    return torch.full((3, 5, width), float(at))


SEQUENCES = [torch.full((length, 2), float(length)) for length in (3, 7, 3, 6, 5)]


def columns(samples):
    return tuple(zip(*samples, strict=True))


def padded(samples):
    return pad_sequence([*samples, SEQUENCES[1]], batch_first=True)[: len(samples)]


CUSTOM = {
    "list of sequences": lambda at: (SEQUENCES[at], list),
    "list of lists": lambda at: ([image(at, 4 + at), at], list),
    "lists of texts and sequences": lambda at: (
        (f"{at}", SEQUENCES[at]),
        lambda s: [[*one] for one in columns(s)],
    ),
    "images, texts, no field": lambda at: ((image(at), f"{at}"), lambda s: (*map(list, columns(s)), 0.5)),
    "sequences, no field": lambda at: (SEQUENCES[at], lambda s: (list(s), ["train", "left"])),
    "lists of views, labels, no field": lambda at: (
        (torch.full((3,), float(at)), torch.full((4,), float(at)), at),
        lambda s: (
            [torch.stack([*one]) for one in columns(s)[:2]],
            [torch.tensor(columns(s)[2]), "train"],
        ),
    ),
    "labels, others": lambda at: (
        torch.tensor([at]),
        lambda s: (torch.stack(s), torch.stack(s) + 1, torch.zeros(7, 2)),
    ),
    "named, others": lambda at: (torch.tensor([at]), lambda s: Pair(torch.stack(s), torch.zeros(7, 2))),
    "named texts": lambda at: (None if at == 2 else f"{at}", lambda s: Pair([*s], "train")),
    "dict and its number, labels": lambda at: (
        torch.tensor(at),
        lambda s: [{"x": torch.stack(s), "epoch": 3}, torch.stack(s)],
    ),
    "dicts and their numbers": lambda at: (
        torch.tensor(at),
        lambda s: ({"x": torch.stack(s), "epoch": 3}, {"y": torch.stack(s)}),
    ),
    "dict of dicts and their numbers": lambda at: (
        torch.tensor(at),
        lambda s: {name: {"x": torch.stack(s), "epoch": 3} for name in "ab"},
    ),
    "list of numbers": lambda at: (torch.tensor(at), list),
    "list of dicts": lambda at: ({"image": image(at), "id": at}, list),
    "list of dicts of tensors": lambda at: ({"ids": ids(7), "label": torch.tensor(at)}, list),
    "tuple of dicts of tensors": lambda at: ({"ids": ids(7), "label": torch.tensor(at)}, tuple),
    "images, targets": lambda at: (
        (image(at, 4 + at), {"boxes": torch.zeros(3, 4)}),
        columns,
    ),
    "images, stacked labels": lambda at: (
        (image(at), at),
        lambda s: ([one for one, _ in s], torch.tensor([label for _, label in s])),
    ),
    "stacked images, targets": lambda at: (
        (image(at), {"boxes": torch.zeros(B if at == 1 else at, 4)}),
        lambda s: (torch.stack([one for one, _ in s]), [found for _, found in s]),
    ),
    "padded, lengths": lambda at: (
        SEQUENCES[at],
        lambda s: (
            pad_sequence([*s, SEQUENCES[1]])[:, : len(s)].swapaxes(0, 1),
            torch.tensor([*map(len, s)]),
        ),
    ),
    "padded, list of lengths": lambda at: (
        SEQUENCES[at],
        lambda s: [padded(s), [*map(len, s)]],
    ),
    "encoding": lambda at: (ids(7) * at, lambda s: UserDict(input_ids=torch.stack(s), labels=torch.stack(s))),
    "two encodings": lambda at: (
        ids(7) * at,
        lambda s: (UserDict(ids=torch.stack(s)),) * 2,
    ),
}


@pytest.mark.parametrize("sample", CUSTOM.values(), ids=CUSTOM)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parts_are_what_other_functions_make_of_their_samples(sample, size):
    samples, (collate, *_) = zip(*[sample(at) for at in range(B)], strict=True)
    batch = collate(list(samples))
    assert num_samples(batch) == B
    parts = [part for part, _ in split_batch(batch, size)]
    for part, start in zip(parts, range(0, B, size), strict=True):
        assert same(part, collate(list(samples[start : start + size])))


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        (lambda at: ({"x": torch.full((7,), float(at))}, {"x": torch.full((7,), 1.0)}), "ab"),
        (lambda at: ({"mel": torch.full((7,), float(at))}, {"mel": torch.full((9,), 1.0)}), "ab"),
        (lambda at: (f"{at}", f"-{at}"), "ab"),
        (lambda at: tuple({"ids": ids(n) * at, "label": at} for n in (5, 7)), "ab"),
        (lambda at: tuple({"ids": ids(n) * at, "text": f"{at}"} for n in (5, 7)), "ab"),
    ],
    ids=[
        "dicts of one shape",
        "of other shapes, as pictures have",
        "texts",
        "tokens, labels",
        "tokens, texts",
    ],
)
def test_what_is_refused_is_read_as_the_message_says(sample, names):
    samples = [sample(at) for at in range(B)]
    batch = default_collate(samples)
    with pytest.raises(UsageError, match=r'"a": batch\[0\], "b": batch\[1\]'):
        num_samples(batch)
    named = {"a": batch[0], "b": batch[1]}
    assert num_samples(named) == B
    assert num_samples({"samples": batch}) == 2
    second = [part for part, _ in split_batch(named, 3)][1]
    assert same([second["a"], second["b"]], default_collate(samples[3:]))

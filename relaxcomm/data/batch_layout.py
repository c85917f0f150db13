"""How the samples of a batch are arranged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import torch
from torch.nn.utils.rnn import PackedSequence

from relaxcomm.errors import UsageError

FIELDS, COLUMNS, SAMPLES = "fields", "columns", "a list"


def layout_of(batch: Any) -> tuple[str, int]:
    """How the samples of a batch are arranged, and how many they are.

    Raises: UsageError for a batch without samples, or one that can be read in several ways.

    Example:
        >>> layout_of([torch.zeros(3, 5), torch.zeros(3)]), layout_of([torch.zeros(3, 5), torch.zeros(7, 5)])
        (('fields', 3), ('a list', 2))
    """
    ways = _ways(batch) or _ways_of_first(batch)
    if len(ways) > 1:
        refuse_layouts(batch, ways)
    if ways:
        return next(iter(ways.items()))
    if isinstance(batch, list | tuple) and not is_named(batch):
        return SAMPLES, len(batch)
    found = next((len(one) for one in values_of(batch) if isinstance(one, list | tuple)), None)
    if found is None:
        raise UsageError(
            f"a batch of type {type(batch).__name__} holds no tensor and no list, whose entries would be its "
            "samples; make one of tensors in tuples, lists and mappings"
        )
    return FIELDS, found


def refuse_layouts(batch: Any, ways: Mapping[str, int]) -> NoReturn:
    """Raises: UsageError that names ways to read a batch, each with its number of samples."""
    told = " or ".join(f"as {layout} of {number} samples" for layout, number in ways.items())
    raise UsageError(
        f"a batch of type {type(batch).__name__} can be read in several ways, {told}; give what holds "
        'all samples in its first dimension a name, {"a": batch[0], "b": batch[1]}, without lists of '
        'tensors in it, or give samples as a list of mappings under a name: {"samples": [{"x": x, "y": y}, '
        "...]}"
    )


def _first_dimension(batch: Any) -> int | None:
    """The first dimension of the first tensor that has any, at whatever depth."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])  # of the first time step, which all samples have
    return next((found for one in values_of(batch) if (found := _first_dimension(one)) is not None), None)


def values_of(batch: Any) -> Iterable[Any]:
    """What a mapping, list or tuple holds."""
    return batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()


def _ways(batch: Any) -> dict[str, int]:
    """Each way to read a batch of mappings and lists, with its number of samples; none where others tell."""
    values = list(values_of(batch))
    if any(isinstance(one, PackedSequence) for one in values):
        return {}
    number = _first_dimension(batch)
    ways = {FIELDS: number} if number is not None and all(has_samples(one, number) for one in values) else {}
    are_fields = bool(ways)
    if not is_named(batch) and all(isinstance(one, Mapping) for one in values):
        have_same_names = len({frozenset(one) for one in values}) == 1
        # A tuple that can hold fields does; a list, which default_collate makes of tuples, may be either.
        if have_same_names and (not are_fields or (isinstance(batch, list) and not _are_tokens(values))):
            ways[SAMPLES] = len(values)
    elif all(isinstance(one, list | tuple) for one in values) and len({len(one) for one in values}) == 1:
        if all(are_alike(one) for one in values):
            ways[COLUMNS] = len(values[0])
            if any(isinstance(one[0], Mapping) for one in values):
                ways.pop(FIELDS, None)  # a list of mappings has one for each sample
        are_tuples = all(type(one) is tuple for one in values)  # which default_collate makes of texts alone
        may_be_samples = isinstance(batch, list) and (are_tuples or not are_fields)
        if may_be_samples and all(are_alike(place) for place in zip(*values, strict=True)):
            ways[SAMPLES] = len(values)
            ways.pop(FIELDS, None)
    return ways


def _are_tokens(mappings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these hold numbers of tokens, of all samples, each padded to its mapping's own length.

    Others of different sizes may be samples: images have as many channels each, too.
    """
    places = [[one[name] for one in mappings] for name in mappings[0]]
    are_numbers = (isinstance(one, torch.Tensor) and not one.is_floating_point() for one in chain(*places))
    return all(are_numbers) and all(len({one.shape for one in place}) > 1 for place in places)


def _ways_of_first(batch: Any) -> dict[str, int]:
    """The ways to read a batch of which not all is cut: as its first tensor tells, and what is beside it."""
    leaves = list(_leaves(batch))
    found = ((one, number) for one in leaves if (number := _first_dimension(one)) is not None)
    first, number = next(found, (None, 0))
    if first is None:
        return {}
    if isinstance(first, torch.Tensor | PackedSequence):
        return {FIELDS: number}
    layout = SAMPLES if first is batch else COLUMNS
    if first is batch and isinstance(batch, tuple):
        is_told = isinstance(batch[0], Mapping) or any(len(one) == number for one in batch[1:])
        return {FIELDS: number} if is_told else {FIELDS: number, layout: len(first)}
    told = {_number(one) for one in leaves if one is not first} & {number, len(first)}
    if len(told) == 1:
        return {FIELDS: number if number in told else len(first)}
    if all(has_samples(one, number) for one in first):
        return {FIELDS: number, layout: len(first)}
    return {layout if first is batch else FIELDS: len(first)}


def _leaves(batch: Any) -> Iterator[Any]:
    """Tensors, lists of tensors of one kind, lists of mappings, and what holds no tensor."""
    values = list(values_of(batch))
    is_whole = not is_named(batch) and are_alike(values) and isinstance(values[0], torch.Tensor | Mapping)
    if isinstance(batch, PackedSequence) or is_whole or _first_dimension(batch) is None or not values:
        yield batch
    else:
        for one in values:
            yield from _leaves(one)


def _number(leaf: Any) -> int | None:
    """How many samples it would have."""
    if isinstance(leaf, list | tuple):
        return len(leaf) if are_alike(leaf) else None
    return _first_dimension(leaf)


def is_named(batch: Any) -> bool:
    """Whether it is a mapping or a named tuple, whose entries are no samples."""
    return isinstance(batch, Mapping) or hasattr(batch, "_fields")


def are_alike(values: Sequence[Any]) -> bool:
    """Whether there are some, all of one type, and tensors with as many dimensions."""
    return len({(type(one), one.dim() if isinstance(one, torch.Tensor) else 0) for one in values}) == 1


def has_samples(value: Any, samples: int) -> bool:
    """Whether it has that many entries where `default_collate` makes some: in tensors and lists of texts."""
    if isinstance(value, torch.Tensor):
        return value.dim() > 0 and len(value) == samples
    if isinstance(value, Mapping):
        return all(has_samples(one, samples) for one in value.values())
    if not isinstance(value, list | tuple):
        return False
    if all(isinstance(one, str | bytes) for one in value):
        return len(value) == samples
    return all(has_samples(one, samples) for one in value)

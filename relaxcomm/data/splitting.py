"""A batch in parts, for gradients that are accumulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from relaxcomm.errors import UsageError

_FIELDS, _COLUMNS, _SAMPLES = "fields", "columns", "a list"


def split_batch(batch: Any, size: int) -> Iterator[tuple[Any, float]]:
    """Parts of at most `size` samples of a batch, each with its share of the samples.

    A batch is made of tensors and lists with an entry for each sample, in tuples, lists and mappings; what
    has no such entries is in each part as it is. Lists of images and of what is to be found there stay whole
    images, as `collate_fn=lambda samples: tuple(zip(*samples))` makes them, and so do lists of samples.

    Raises: UsageError for a size below 1, a batch without samples, one that can be read in several ways, or
        one with a PackedSequence that would have to be cut.

    Example:
        >>> import torch
        >>> from relaxcomm.data import split_batch
        >>> [(part, round(share, 2)) for part, share in split_batch((torch.arange(3), ["a", "b", "c"]), 2)]
        [((tensor([0, 1]), ['a', 'b']), 0.67), ((tensor([2]), ['c']), 0.33)]
    """
    if size < 1:
        raise UsageError(f"parts of {size} samples are not allowed; use at least 1")
    layout, total = _read(batch)
    if total <= size:
        yield batch, 1.0
        return
    _check_unpacked(batch)
    for start in range(0, total, size):
        samples = slice(start, min(start + size, total))
        share = (samples.stop - start) / total
        if layout == _FIELDS:
            yield _part(batch, total, samples), share
        elif layout == _SAMPLES:
            yield batch[samples], share
        elif isinstance(batch, Mapping):
            yield {key: value[samples] for key, value in batch.items()}, share
        else:
            yield _like(batch, [value[samples] for value in batch]), share


def num_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor, or the length of its lists.

    Raises: UsageError for a batch without either, or one that can be read in several ways.

    Example:
        >>> import torch
        >>> from relaxcomm.data import num_samples
        >>> num_samples({"name": ["a", "b", "c"], "x": torch.zeros(3, 5)})
        3
    """
    return _read(batch)[1]


def _read(batch: Any) -> tuple[str, int]:
    """How the samples of a batch are arranged, and how many they are."""
    ways = _ways(batch)
    if len(ways) > 1:
        told = " or ".join(f"as {layout} of {number} samples" for layout, number in ways.items())
        raise UsageError(
            f"a batch of type {type(batch).__name__} can be read in several ways, {told}; give tensors with "
            "all samples in their first dimension in one tuple or mapping, without lists in it, or samples "
            'as a list of mappings under a name: {"samples": [{"x": x, "y": y}, ...]}'
        )
    if ways:
        return next(iter(ways.items()))
    found = _first_dimension(batch)
    if found is None and isinstance(batch, Mapping):
        found = next((len(one) for one in batch.values() if isinstance(one, list | tuple)), None)
    if found is None and isinstance(batch, list | tuple):
        found = len(batch)
    if found is None:
        raise UsageError(
            f"a batch of type {type(batch).__name__} holds no tensor and no list, whose entries would be its "
            "samples; make one of tensors in tuples, lists and mappings"
        )
    return _FIELDS, found


def _check_unpacked(batch: Any) -> None:
    if isinstance(batch, PackedSequence):
        raise UsageError(
            "a batch with a PackedSequence cannot be cut into parts: its entries are time steps of all "
            "samples; give padded sequences and their lengths (torch.nn.utils.rnn.pad_sequence), and pack "
            "each part (pack_padded_sequence)"
        )
    for value in _values(batch):
        _check_unpacked(value)


def _first_dimension(batch: Any) -> int | None:
    """Of the first tensor that has any, at whatever depth."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])  # of the first time step, which all samples have
    return next((found for one in _values(batch) if (found := _first_dimension(one)) is not None), None)


def _values(batch: Any) -> Iterable[Any]:
    """What a mapping, list or tuple holds."""
    return batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()


def _ways(batch: Any) -> dict[str, int]:
    """Each way to read a batch of mappings and lists, with its number of samples; none where others tell."""
    values = list(_values(batch))
    if not values or any(isinstance(one, PackedSequence) for one in values):
        return {}
    number = _first_dimension(batch)
    are_fields = number is not None and all(_has_samples(one, number) for one in values)
    ways = {_FIELDS: number} if number is not None and are_fields else {}
    if not isinstance(batch, Mapping) and all(isinstance(one, Mapping) for one in values):
        have_same_names = len({frozenset(one) for one in values}) == 1
        if have_same_names or (isinstance(batch, list) and not are_fields):
            ways[_SAMPLES] = len(values)
    elif all(isinstance(one, list | tuple) for one in values) and len({len(one) for one in values}) == 1:
        if all(_are_alike(one) for one in values):
            ways[_COLUMNS] = len(values[0])
            if any(isinstance(one[0], Mapping) for one in values):
                ways.pop(_FIELDS, None)  # a list of mappings has one for each sample
        are_tuples = all(type(one) is tuple for one in values)  # which default_collate makes of texts alone
        may_be_samples = isinstance(batch, list) and (are_tuples or not are_fields)
        if may_be_samples and all(_are_alike(place) for place in zip(*values, strict=True)):
            ways[_SAMPLES] = len(values)
            ways.pop(_FIELDS, None)
    return ways


def _are_alike(values: Sequence[Any]) -> bool:
    """Whether there are some, all of one type, and tensors with as many dimensions."""
    return len({(type(one), one.dim() if isinstance(one, torch.Tensor) else 0) for one in values}) == 1


def _has_samples(value: Any, samples: int) -> bool:
    """Whether it has that many entries where `default_collate` makes some: in tensors and lists of texts."""
    if isinstance(value, torch.Tensor):
        return value.dim() > 0 and len(value) == samples
    if isinstance(value, Mapping):
        return all(_has_samples(one, samples) for one in value.values())
    if not isinstance(value, list | tuple):
        return False
    if all(isinstance(one, str | bytes) for one in value):
        return len(value) == samples
    return all(_has_samples(one, samples) for one in value)


def _part(value: Any, total: int, samples: slice) -> Any:
    if isinstance(value, torch.Tensor):
        return value[samples] if value.dim() and len(value) == total else value
    if isinstance(value, Mapping):
        return {key: _part(item, total, samples) for key, item in value.items()}
    if not isinstance(value, list | tuple):
        return value
    if len(value) == total and all(_first_dimension(item) != total for item in value):
        return value[samples]  # an entry for each sample, such as texts, or tensors of different sizes
    return _like(value, [_part(item, total, samples) for item in value])


def _like(value: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A list, tuple or named tuple of the type of another."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

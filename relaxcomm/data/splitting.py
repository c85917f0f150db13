"""A batch in parts, for gradients that are accumulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from relaxcomm.data.batch_layout import (
    FIELDS,
    SAMPLES,
    are_alike,
    has_samples,
    is_named,
    layout_of,
    refuse_layouts,
    values_of,
)
from relaxcomm.errors import UsageError


def split_batch(batch: Any, size: int) -> Iterator[tuple[Any, float]]:
    """Parts of at most `size` samples of a batch, each with its share of the samples.

    A batch is made of tensors and lists with an entry for each sample, in tuples, lists and mappings; what
    has no such entries is in each part as it is. Lists of images and of what is to be found there stay whole
    images, as `collate_fn=lambda samples: tuple(zip(*samples))` makes them, and so do lists of samples. A
    list of tensors of one first dimension alone holds fields, as torch's `default_collate` makes it.

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
    layout, total = layout_of(batch)
    if total <= size:
        yield batch, 1.0
        return
    _check_unpacked(batch)
    for start in range(0, total, size):
        samples = slice(start, min(start + size, total))
        share = (samples.stop - start) / total
        if layout == FIELDS:
            yield _fields(batch, total, samples), share
        elif layout == SAMPLES:
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
    return layout_of(batch)[1]


def _check_unpacked(batch: Any) -> None:
    if isinstance(batch, PackedSequence):
        raise UsageError(
            "a batch with a PackedSequence cannot be cut into parts: its entries are time steps of all "
            "samples; give padded sequences and their lengths (torch.nn.utils.rnn.pad_sequence), and pack "
            "each part (pack_padded_sequence)"
        )
    for value in values_of(batch):
        _check_unpacked(value)


def _part(value: Any, total: int, samples: slice) -> Any:
    if isinstance(value, list | tuple) and _is_one_each(value, total):
        return value[samples]
    return _fields(value, total, samples)


def _fields(value: Any, total: int, samples: slice) -> Any:
    if isinstance(value, torch.Tensor):
        return value[samples] if value.dim() and len(value) == total else value
    if isinstance(value, Mapping):
        return {key: _part(item, total, samples) for key, item in value.items()}
    if not isinstance(value, list | tuple):
        return value
    return _like(value, [_part(item, total, samples) for item in value])


def _is_one_each(values: list[Any] | tuple[Any, ...], total: int) -> bool:
    """Whether these are one for each sample, such as texts, mappings, or tensors of different sizes."""
    if len(values) != total or is_named(values):
        return False
    if all(isinstance(one, Mapping) for one in values):
        return True
    have_samples = [has_samples(one, total) for one in values]
    if all(have_samples):
        refuse_layouts(values, {FIELDS: total, SAMPLES: total})
    return not any(have_samples) or are_alike([one for one in values if one is not None])


def _like(value: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A list, tuple or named tuple of the type of another."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

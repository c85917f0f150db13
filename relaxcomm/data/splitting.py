"""A batch in parts, for gradients that are accumulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from relaxcomm.errors import UsageError


def split_batch(batch: Any, size: int) -> Iterator[tuple[Any, float]]:
    """Parts of at most `size` samples of a batch, each with its share of the samples.

    A batch is made of tensors and lists with an entry for each sample, in tuples, lists and mappings; what
    has no such entries is in each part as it is. Lists of images and of what is to be found there stay whole
    images, as `collate_fn=lambda samples: tuple(zip(*samples))` makes them.

    Raises: UsageError for a size below 1, a batch without samples, or one with a PackedSequence that
        would have to be cut.

    Example:
        >>> import torch
        >>> from relaxcomm.data import split_batch
        >>> [(part, round(share, 2)) for part, share in split_batch((torch.arange(3), ["a", "b", "c"]), 2)]
        [((tensor([0, 1]), ['a', 'b']), 0.67), ((tensor([2]), ['c']), 0.33)]
    """
    if size < 1:
        raise UsageError(f"parts of {size} samples are not allowed; use at least 1")
    total, columns = num_samples(batch), _columns(batch)
    if total <= size:
        yield batch, 1.0
        return
    _check_unpacked(batch)
    for start in range(0, total, size):
        samples = slice(start, min(start + size, total))
        share = (samples.stop - start) / total
        if columns is None:
            yield _part(batch, total, samples), share
        elif isinstance(batch, Mapping):
            yield {key: value[samples] for key, value in batch.items()}, share
        else:
            yield _like(batch, [value[samples] for value in columns]), share


def num_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor, or the length of its lists.

    Raises: UsageError for a batch without either.

    Example:
        >>> import torch
        >>> from relaxcomm.data import num_samples
        >>> num_samples({"name": ["a", "b", "c"], "x": torch.zeros(3, 5)})
        3
    """
    columns = _columns(batch)
    found = _first_dimension(batch) if columns is None else len(columns[0])
    if found is None and isinstance(batch, Mapping):
        found = next((len(one) for one in batch.values() if isinstance(one, list | tuple)), None)
    if found is None and isinstance(batch, list | tuple):
        found = len(batch)
    if found is None:
        raise UsageError(
            f"a batch of type {type(batch).__name__} holds no tensor and no list, whose entries would be its "
            "samples; make one of tensors in tuples, lists and mappings"
        )
    return found


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


def _columns(batch: Any) -> Sequence[Any] | None:
    """The values of a batch that consists of lists with an entry for each sample, or None.

    Lists of tensors may also be fields that have all samples in their first dimension, as torch's own
    `default_collate` makes them of nested samples: then all tensors have as many, and no list is longer or
    shorter.
    """
    values = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not (isinstance(values, list | tuple) and values and all(isinstance(v, list | tuple) for v in values)):
        return None
    if any(isinstance(value, PackedSequence) for value in values):
        return None
    lengths = {len(value) for value in values}
    samples = _first_dimension(batch)
    if len(lengths) > 1 or samples is None:
        return None
    return None if all(_has_samples(value, samples) for value in values) else values


def _has_samples(value: Any, samples: int) -> bool:
    """Whether all tensors and lists of other things have that many entries."""
    if isinstance(value, torch.Tensor):
        return value.dim() > 0 and len(value) == samples
    if isinstance(value, Mapping):
        return all(_has_samples(one, samples) for one in value.values())
    if not isinstance(value, list | tuple):
        return True
    if any(isinstance(one, torch.Tensor | Mapping | list | tuple) for one in value):
        return all(_has_samples(one, samples) for one in value)
    return len(value) == samples


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

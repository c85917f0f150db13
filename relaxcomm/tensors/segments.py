"""A flat tensor cut into segments that are coded with one scale each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relaxcomm.tensors.host_copies import kept_per_stream, on_device

_CACHED = 1 << 19  # entries that fit a CPU's cache together with what is made of them
SHORT = 1 << 14  # entries of a segment that take less time than the operators that work on it alone


def chunk_size(tensor: Tensor, cached: int | None = None) -> int:
    """Entries of a tensor that are best worked on at once: as many as fit the cache, or all on a GPU."""
    return (cached or _CACHED) if tensor.device.type == "cpu" else max(1, tensor.numel())


@dataclass(frozen=True)
class Group:
    """`num` segments that stand one behind the other from `start` to `stop`.

    They are of equal size unless `sizes` has that of each.
    """

    first: int
    num: int
    start: int
    stop: int
    sizes: tuple[int, ...] = ()

    def rows(self, flat: Tensor) -> Tensor:
        """The entries, `[num, size]`; of segments of several sizes in one row."""
        return flat[self.start : self.stop].view(1 if self.sizes else self.num, -1)

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The entries in `rows`, apart for each segment where sizes differ."""
        return torch.split(rows.view(-1), list(self.sizes)) if self.sizes else (rows.view(-1),)

    def own(self, values: Tensor) -> Tensor:
        """A number for each segment, `[num]`."""
        return values[self.first : self.first + self.num]

    def lengths(self, device: torch.device) -> Tensor:
        """How many entries a segment has, of each where sizes differ."""
        return _on_device(self.sizes or ((self.stop - self.start) // self.num,), device)

    def beside(self, own: Tensor) -> Tensor:
        """A number for each segment, `[num]`, as it stands beside `rows`."""
        if not self.sizes:
            return own.view(-1, 1)
        numel = self.stop - self.start
        return own.repeat_interleave(self.lengths(own.device), output_size=numel).view(1, -1)

    def chunks(self, size: int) -> Iterator[Group]:
        """This group in parts of at most `size` entries; several of them may belong to one segment."""
        if self.num > 1 or self.stop - self.start <= size:
            yield self
            return
        for start in range(self.start, self.stop, size):
            yield Group(self.first, 1, start, min(start + size, self.stop))


@dataclass(frozen=True)
class Blocks:
    """`num` blocks of `size` entries from `start`, of each of which `num_kept` are chosen."""

    start: int
    num: int
    size: int
    num_kept: int

    @property
    def stop(self) -> int:
        """Where the entries behind them begin."""
        return self.start + self.num * self.size

    def parts(self, size: int) -> Iterator[Blocks]:
        """These blocks in parts of at most `size` entries, or of a single block."""
        step = max(1, size // self.size)
        for first in range(0, self.num, step):
            num = min(step, self.num - first)
            yield Blocks(self.start + first * self.size, num, self.size, self.num_kept)


@dataclass(frozen=True)
class Segments:
    """Blocks of `block_size` entries, the last one shorter; or segments of the given sizes.

    Args:
        numel: entries of the tensor.
        block_size: entries of a block, or None.
        sizes: entries of each segment, none of them 0, if there is no block size.
        shard_size: entries of each shard that is coded on its own, from whose beginning blocks are counted;
            the last one may be shorter. None where all are coded together.

    Example:
        >>> from relaxcomm.plugin import Segments
        >>> Segments(10, block_size=4).count, Segments(10, None, sizes=(7, 2, 1)).count
        (3, 3)
    """

    numel: int
    block_size: int | None
    sizes: tuple[int, ...] = ()
    shard_size: int | None = None

    @functools.cached_property
    def count(self) -> int:
        """How many segments there are."""
        if self.shard_size is not None:
            return sum(shard.count for shard in self.shards)
        return len(self.sizes) if self.block_size is None else -(-self.numel // self.block_size)

    @functools.lru_cache(maxsize=256)  # noqa: B019  segments are a few small numbers
    def cut(self, shard_size: int | None) -> Segments:
        """The same in shards, if any are asked for; of a segment that lies in two, each has its own."""
        if shard_size is None:
            return self
        if self.block_size is not None:
            return replace(self, shard_size=shard_size)
        ends = {*itertools.accumulate(self.sizes), *range(0, self.numel, shard_size)}
        sizes = tuple(end - start for start, end in itertools.pairwise(sorted(ends)))
        return replace(self, sizes=sizes, shard_size=shard_size)

    @property
    @functools.lru_cache(maxsize=256)  # noqa: B019  not kept in the segments, which would hold themselves
    def shards(self) -> tuple[Segments, ...]:
        """Those of each shard, or these."""
        size = self.shard_size
        if size is None:
            return (self,)
        if self.block_size is not None:
            numels = (min(size, self.numel - start) for start in range(0, self.numel, size))
            return tuple(Segments(numel, self.block_size) for numel in numels)
        ends = zip(itertools.accumulate(self.sizes), self.sizes, strict=True)
        cut = itertools.groupby(ends, lambda one: (one[0] - 1) // size)
        sizes = [tuple(size for _, size in own) for _, own in cut]
        return tuple(Segments(sum(own), None, own) for own in sizes)

    @functools.lru_cache(maxsize=256)  # noqa: B019  segments are a few small numbers
    def groups(self, together: int) -> tuple[Group, ...]:
        """All segments in order, blocks and short ones together up to so many entries."""
        return tuple(self._groups(together))

    def _groups(self, together: int) -> Iterator[Group]:
        if self.block_size is None:
            first = start = 0
            for sizes in _runs(self.sizes, together):
                num, numel = len(sizes), sum(sizes)
                yield Group(first, num, start, start + numel, sizes if num > 1 else ())
                first, start = first + num, start + numel
            return
        size, whole = self.block_size, self.numel // self.block_size
        step = max(1, together // size)
        for first in range(0, whole, step):
            num = min(step, whole - first)
            yield Group(first, num, first * size, (first + num) * size)
        if whole * size < self.numel:
            yield Group(whole, 1, whole * size, self.numel)


def _runs(sizes: Sequence[int], together: int) -> Iterator[tuple[int, ...]]:
    """The same sizes, those of short segments together up to so many entries."""
    run: list[int] = []
    left = together
    for size in sizes:
        if run and (size > left or max(size, run[-1]) > SHORT):
            yield tuple(run)
            run, left = [], together
        run.append(size)
        left -= size
    if run:
        yield tuple(run)


@kept_per_stream(256)
def _on_device(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return on_device(torch.tensor(sizes), device)

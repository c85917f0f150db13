"""Which gradients of a backward are there, and which buckets can be launched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from relaxcomm.errors import UsageError
from relaxcomm.tensors.buckets import Bucket


class Readiness:
    """Follows arrivals; buckets are handed out in index order, each once it and all before it are complete.

    Until `learn` nothing is handed out by arrivals: the first backward shows in which order
    gradients become ready (rank 0's becomes the layout) and how often each arrives, which is more
    than once under reentrant checkpointing.

    A backward mostly is like the one before it. While its arrivals are, nothing is counted, but compared.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._learning = True
        self._expected = [1] * len(names)
        self._bucket_of: list[int] = []
        self._sizes: list[int] = []
        self._come: list[int] = []
        self._order: list[int] = []  # of a backward before
        self._complete_at: list[float] = []  # how many arrivals of it completed each bucket
        self._next = 0
        self.closing: set[int] = set()
        """Parameters whose gradients have been the last of their buckets, in any backward so far."""

    def bind(self, buckets: Sequence[Bucket]) -> None:
        """Follow these buckets."""
        bucket_of = {name: bucket.index for bucket in buckets for name in bucket.names}
        self._bucket_of = [bucket_of[name] for name in self._names]
        self._sizes = [len(bucket.items) for bucket in buckets]
        self._order, self._complete_at = [], [math.inf] * len(buckets)

    def open(self) -> None:
        """A backward begins."""
        if not self._learning:
            self._come = []
        self._next = 0

    def abort(self) -> None:
        """Forget a backward that an error has ended."""
        self._come, self._next = [], 0

    def arrive(self, indices: Sequence[int]) -> bool:
        """Take note of gradients, in the order in which they came; whether a bucket can be launched now.

        Raises: UsageError for one that comes after its bucket was launched.
        """
        begin = len(self._come)
        self._come += indices
        if self._learning:
            return False
        if self._order[begin : len(self._come)] != indices:
            self._count(begin)
        return self._is_complete(self._next)

    def missing(self) -> set[str]:
        """The parameters without a gradient in this backward."""
        come = set(self._come)
        if len(come) == len(self._names):  # as a rule: names are not looked through in each backward
            return set()
        return {name for index, name in enumerate(self._names) if index not in come}

    def has_all(self, index: int) -> bool:
        """Whether a gradient has come as often as it will."""
        return not self._learning and self._come.count(index) == self._expected[index]

    def complete(self) -> Iterator[int]:
        """Buckets that are complete and were not handed out yet."""
        while self._is_complete(self._next):
            self._next += 1
            yield self._next - 1

    def rest(self) -> Iterator[int]:
        """All buckets that were not handed out yet, complete or not."""
        while self._next < len(self._sizes):
            self._next += 1
            yield self._next - 1

    def order(self) -> list[str]:
        """The parameters in the order in which they became ready, those without a gradient last."""
        return list(dict.fromkeys([*(self._names[index] for index in self._come), *self._names]))

    def learn(self) -> None:
        """The first backward has ended: expect the next ones to be like it."""
        if not self._learning or not self._come:
            return
        for index in self._come:
            self._expected[index] = 0
        for index in self._come:
            self._expected[index] += 1
        self._learning = False
        self._count(0)

    def _is_complete(self, bucket: int) -> bool:
        return bucket < len(self._sizes) and self._complete_at[bucket] <= len(self._come)

    def _count(self, begin: int) -> None:
        """Count arrivals, of which those from `begin` on are new, in a backward unlike the one before it."""
        left, missing = list(self._expected), list(self._sizes)
        self._order, self._complete_at = list(self._come), [math.inf] * len(missing)
        for number, index in enumerate(self._come):
            left[index] -= 1
            bucket = self._bucket_of[index]
            if left[index] == 0:
                missing[bucket] -= 1
                if not missing[bucket]:
                    self._complete_at[bucket] = number + 1
                    self.closing.add(index)
            elif left[index] < 0 and bucket < self._next and number >= begin:
                raise self._late_error(index)
        if min(left) < 0:
            self._order = []  # in a backward like this one they are counted, too: one of them may be late

    def _late_error(self, index: int) -> UsageError:
        return UsageError(
            f"{self._names[index]} got another gradient after its bucket was exchanged: it is used more "
            "often in this backward than in the first one, inside reentrant checkpoints; use "
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )

"""Which gradients of a backward are there, and which buckets can be launched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relaxcomm.errors import UsageError
from relaxcomm.tensors.buckets import Bucket


class Readiness:
    """Counts arrivals; buckets are handed out in index order, each once it and all before it are complete.

    Until `learn` nothing is handed out by arrivals: the first backward shows in which order
    gradients become ready (rank 0's becomes the layout) and how often each arrives, which is more
    than once under reentrant checkpointing.

    Args:
        names: of the parameters.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._places = {name: index for index, name in enumerate(names)}
        self._learning = True
        self._arrivals: list[int] = []
        self._expected = [1] * len(names)
        self._left: list[int] = []
        self._bucket_of: list[int] = []
        self._sizes: list[int] = []
        self._missing: list[int] = []
        self._next = 0
        self.closing: set[int] = set()
        """Parameters whose gradients have been the last of their buckets, in any backward so far."""

    def bind(self, buckets: Sequence[Bucket]) -> None:
        """Follow these buckets."""
        place = {name: bucket.index for bucket in buckets for name in bucket.names}
        self._bucket_of = [place[name] for name in self._names]
        self._sizes = [len(bucket.items) for bucket in buckets]

    def open(self) -> None:
        """A backward begins."""
        self._left, self._missing, self._next = list(self._expected), list(self._sizes), 0

    def arrive(self, indices: Sequence[int]) -> bool:
        """Take note of gradients, in the order in which they came; whether a bucket can be launched now.

        Raises: UsageError for one that comes after its bucket was launched.
        """
        if self._learning:
            self._arrivals += indices
            return False
        left, missing, bucket_of = self._left, self._missing, self._bucket_of
        for index in indices:
            left[index] -= 1
            if left[index] == 0:
                missing[bucket_of[index]] -= 1
                if not missing[bucket_of[index]]:
                    self.closing.add(index)
            elif left[index] < 0 and bucket_of[index] < self._next:
                raise self._late_error(index)
        return self._next < len(missing) and not missing[self._next]

    def has_come(self, name: str) -> bool:
        """Whether a gradient has come in this backward."""
        index = self._places[name]
        return index in self._arrivals if self._learning else self._left[index] < self._expected[index]

    def has_all(self, index: int) -> bool:
        """Whether a gradient has come as often as it will."""
        return not (self._learning or self._left[index])

    def complete(self) -> Iterator[int]:
        """Buckets that are complete and were not handed out yet."""
        while self._next < len(self._sizes) and not self._missing[self._next]:
            self._next += 1
            yield self._next - 1

    def rest(self) -> Iterator[int]:
        """All buckets that were not handed out yet, complete or not."""
        while self._next < len(self._sizes):
            self._next += 1
            yield self._next - 1

    def order(self) -> list[str]:
        """The parameters in the order in which they became ready, those without a gradient last."""
        seen = [self._names[index] for index in dict.fromkeys(self._arrivals)]
        return seen + [name for name in self._names if name not in set(seen)]

    def learn(self) -> None:
        """The first backward has ended: expect the next ones to be like it."""
        if not self._learning or not self._arrivals:
            return
        come = set(self._arrivals)
        for index in come:
            self._expected[index] = self._arrivals.count(index)
        self._left = [0 if index in come else 1 for index in range(len(self._names))]
        self.closing = set({self._bucket_of[index]: index for index in self._arrivals}.values())
        self._learning, self._arrivals = False, []

    def _late_error(self, index: int) -> UsageError:
        return UsageError(
            f"{self._names[index]} got another gradient after its bucket was exchanged: it is used more "
            "often in this backward than in the first one, inside reentrant checkpoints; use "
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )

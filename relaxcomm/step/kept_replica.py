"""What an average replaces is put back afterwards, but for what others have written meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor

from relaxcomm.replica.buffers import moved_by_forwards
from relaxcomm.replica.named_parameters import named_buffers
from relaxcomm.replica.replica import Replica
from relaxcomm.step.bound import Bound
from relaxcomm.step.model_means import gathered
from relaxcomm.tensors.buckets import Bucket

Means: TypeAlias = list[tuple[Bucket, Tensor]]


@contextmanager
def kept(bound: Bound, means: Means | None = None) -> Iterator[Kept]:
    """Have afterwards what was there before, bit for bit, of what an average replaces.

    Args:
        bound: the algorithm on a model.
        means: that are there inside, and that the caller holds no more.

    Yields: the copy.
    """
    means = [] if means is None else means
    own = Kept(bound.replica, {name for bucket, _ in means for name in bucket.names})
    with bound.replica.loaded.ignored():
        try:
            own.make_way(means)
            yield own
        finally:
            own.put_back()


class Kept:
    """A copy of what an average replaces, as this rank has it.

    Args:
        replica: whose.
        without: names of parameters of which `make_way` makes the copy.
    """

    def __init__(self, replica: Replica, without: Collection[str] = ()) -> None:
        self._replica = replica
        own = replica.pack(item for item in replica.parameters if item.name not in without)
        self._parameters = list(gathered(own))
        self._buffers = _buffers(replica)
        self._shown: dict[str, Tensor] = {}  # of the average, what others may write into

    def make_way(self, means: Means) -> None:
        """Have means there, and hold no second model beside the copy: each goes as soon as it is written."""
        self._replica.reshard()
        while means:
            bucket, mean = means.pop(0)
            if not self._replica.buffers.hold(bucket):
                self._parameters += gathered([bucket])
            bucket.scatter(mean)

    def leave_written(self) -> None:
        """Do not put back what others write into buffers from now on, but for statistics that forwards move.

        Those go with weights, which are always put back. Contents are compared, since versions miss
        `.data.copy_()`, and take for written what was swapped out and in again, as for an average of weights.
        """
        moved = moved_by_forwards(self._replica.model)
        self._shown = {name: one for name, one in _buffers(self._replica).items() if name not in moved}

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Have it where it was inside, and keep what becomes of it; then show again what was shown."""
        shown = Kept(self._replica)
        self.put_back()
        yield
        own = Kept(self._replica)
        self._parameters, self._buffers = own._parameters, own._buffers
        shown.put_back()

    def put_back(self) -> None:
        """Write it where it was; the host waits for no GPU."""
        self._replica.reshard()
        for bucket, flat in reversed(self._parameters):  # the first copy of what several services hold
            bucket.scatter(flat)
        held = dict(named_buffers(self._replica.model))  # `.to()` replaces them
        for name, own in self._buffers.items():
            if name in held and _form(held[name]) == _form(own):
                buffer, shown = held[name].detach(), self._shown.get(name)
                buffer.copy_(own if shown is None else own.where(buffer == shown, buffer))


def _buffers(replica: Replica) -> dict[str, Tensor]:
    """Copies of the buffers that an average replaces, or may, and of the counts that statistics go with."""
    names = {item.name for item in (*replica.buffers.statistics(), *replica.buffers.others())}
    names |= moved_by_forwards(replica.model)
    return {name: one.detach().clone() for name, one in named_buffers(replica.model) if name in names}


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device

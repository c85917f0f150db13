"""A bucket's gradients as views into one flat buffer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.replica.sharding import like
from relaxcomm.replica.user_gradients import UserGradients, memory_holders
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item, local

CACHED_BYTES, _LARGE_BYTES, _SPAN_BYTES = 1 << 20, 1 << 17, 1 << 19
_grad = attrgetter("grad")


def check_dense(parameters: Iterable[Item]) -> None:
    """Raise UsageError for a parameter whose gradient is sparse."""
    for item in parameters:
        if (gradient := item.grad) is not None and gradient.layout != torch.strided:
            raise UsageError(
                f"{item.name} has a sparse gradient, which no exchange here takes; use sparse=False in its "
                "embedding, or an algorithm that exchanges parameters and looks at no gradient, such as "
                "local_sgd"
            )


def check_gradients(bucket: Bucket) -> None:
    """Raise UsageError for a parameter whose gradient cannot be exchanged as that of the bucket's."""
    check_dense(bucket.items)
    bucket.check_unchanged()
    for item in bucket.items:
        wanted = getattr(item.parameter, "grad_dtype", bucket.dtype)  # torch 2.8 has none; None takes any
        if wanted not in (None, bucket.dtype):
            raise UsageError(
                f"{item.name} is {bucket.dtype} and has grad_dtype={wanted}, but gradients are exchanged in "
                "the type of their parameters; leave grad_dtype as it is, or use an algorithm that exchanges "
                "parameters, such as local_sgd"
            )


class GradientBuffer:
    """The flat gradients of a bucket, with one flag a tensor behind them.

    What a training loop keeps of gradients that it has taken out of `.grad` is its own: then the next ones
    have other memory.

    A flag says whether the tensor has a gradient on this rank; it travels with elementwise
    messages, so that a parameter unused on every rank keeps `.grad` None without a round trip of
    its own.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.parameters = [item.parameter for item in bucket.items]
        self.theirs = UserGradients(self.parameters)
        """The gradients that are tensors of the training loop's own."""
        self._allocate()
        self.unused: list[int] = []
        self._is_sharded = any(item.sharded is not None for item in bucket.items)
        self._taken: set[int] = set()  # lie here already, multiplied

    @property
    def large(self) -> list[int]:
        """Tensors that are better taken as soon as they are there, while they are in the cache; none on a
        GPU, where one launch for all of a bucket's costs less.
        """
        if self.main.device.type != "cpu" or self.main.nbytes <= CACHED_BYTES:
            return []
        return [index for index, view in enumerate(self.views) if view.nbytes >= _LARGE_BYTES]

    def expect_all(self) -> None:
        """Nothing is exchanged yet, so that no parameter is known to have no gradient."""
        if list(map(Tensor.data_ptr, self.views)) != self._addresses:
            self._make_views()  # `.to()` has moved the memory of those that are `.grad`
        elif self._are_kept():
            self._allocate()
        self.unused = []
        self._taken.clear()

    def take(self, index: int, factor: float | None) -> None:
        """Copy one gradient that has just come, as `collect` does for all."""
        gradient = self.parameters[index].grad
        if gradient is not None and gradient is not self._grads[index]:
            fresh = {index: gradient}
            try:
                self._take_theirs(fresh)
                self._fill(range(index, index + 1), self.views[index], fresh, factor)
                self._expose([index])
            except RuntimeError:
                check_gradients(self.bucket)  # may say why torch refuses
                raise
            self._taken.add(index)

    def collect(self, factor: float | None = None, missing: Set[str] = frozenset()) -> None:
        """Copy gradients that do not lie in the buffer yet, and make `.grad` the views into it.

        Args:
            factor: by which all are multiplied on the way, while they are in the cache; None for 1.
            missing: parameters whose `.grad` is as it was before this backward.
        """
        # A look at a tensor in C takes a third of one in Python, and there may be hundreds.
        gradients: list[Tensor | None] = list(map(_grad, self.parameters))
        self.unused = [index for index, gradient in enumerate(gradients) if gradient is None]
        fresh = {
            index: gradient
            for index, (gradient, own) in enumerate(zip(gradients, self._grads, strict=True))
            if gradient is not own and gradient is not None
        }
        try:
            self._take_theirs(fresh, missing)
            for span, flat in self._spans:
                self._fill(span, flat, fresh, factor)
            self._expose(fresh)
        except RuntimeError:
            check_gradients(self.bucket)  # may say why torch refuses
            raise
        self._taken.clear()  # what another rule collects in this backward is the last one's result
        for index in self.unused:
            self.views[index].zero_()
        flag_used(self.flags, self.unused)

    def take_flags(self, result: Tensor) -> None:
        """Copy the flags that came behind a result, unless they lie here already."""
        flags = result[self.bucket.numel :]
        if flags.numel() and flags.data_ptr() != self.flags.data_ptr():
            self.flags.copy_(flags)

    def expose_used(self, used: Sequence[complex]) -> None:
        """Give locally unused parameters a `.grad` where `used` says that some rank has a gradient."""
        self._expose([index for index in self.unused if used[index]])

    def nonzero_flags(self) -> Tensor:
        """Whether a tensor has an entry other than zero, 1 or 0 each."""
        return torch.stack([view.any() for view in self.views]).float()

    def hide(self) -> None:
        """Make no view `.grad`."""
        self.theirs.give_back()
        for parameter, own in zip(self.parameters, self._grads, strict=True):
            if parameter.grad is own:
                parameter.grad = None

    def release(self) -> None:
        """Give gradients that are views their own memory, as before attach."""
        self.theirs.give_back()
        for parameter, own in zip(self.parameters, self._grads, strict=True):
            if parameter.grad is own:
                parameter.grad = own.clone(memory_format=torch.preserve_format)

    def _expose(self, indices: Iterable[int]) -> None:
        """Make the views `.grad` of some parameters."""
        for index in indices:
            self.parameters[index].grad = self._grads[index]

    def _allocate(self) -> None:
        bucket = self.bucket
        self.whole = torch.zeros(bucket.numel + len(bucket.items), dtype=bucket.dtype, device=bucket.device)
        self.main, self.flags = self.whole[: bucket.numel], self.whole[bucket.numel :]
        self._make_views()

    def _are_kept(self) -> bool:
        """Whether somebody has a gradient that is `.grad` no more, or looks at the memory of one."""
        references = list(map(sys.getrefcount, self._grads))
        if references != self._references and any(
            now > before and parameter.grad is not own
            for now, before, parameter, own in zip(
                references, self._references, self.parameters, self._grads, strict=True
            )
        ):
            return True
        return memory_holders(self.whole) != self._holders

    def _make_views(self) -> None:
        # No views to autograd, so that loops may `p.grad.detach_()`, as before there was `set_to_none`.
        self.views = [view.detach() for view in self.bucket.views(self.main)]
        self._grads = [like(p, view) for p, view in zip(self.parameters, self.views, strict=True)]
        self._addresses = list(map(Tensor.data_ptr, self.views))
        offsets = [*self.bucket.offsets, self.bucket.numel]
        sizes = [view.nbytes for view in self.views]
        # On a GPU one launch for all costs less than what the cache saves.
        spans = _spans(sizes) if self.main.device.type == "cpu" else [range(len(sizes))]
        self._spans = [(span, self.main[offsets[span[0]] : offsets[span[-1] + 1]]) for span in spans]
        self._references = list(map(sys.getrefcount, self._grads))
        self._holders = memory_holders(self.whole)

    def _take_theirs(self, fresh: Mapping[int, Tensor], missing: Set[str] = frozenset()) -> None:
        if not self._is_sharded:  # there FSDP hands out views of what it has reduced
            names = self.bucket.names
            self.theirs.take(fresh, [index for index in fresh if names[index] in missing] if missing else ())

    def _fill(self, span: range, flat: Tensor, fresh: Mapping[int, Tensor], factor: float | None) -> None:
        """Copy the gradients that have come for tensors side by side; multiply what was not taken before."""
        come, views = [fresh[index] for index in span if index in fresh], self.views[span.start : span.stop]
        gradients = list(map(local, come)) if self._is_sharded else come
        if factor is not None and len(come) == len(views) == 1:
            torch.mul(gradients[0], factor, out=views[0])
            return
        if come:
            into = views if len(come) == len(views) else [self.views[i] for i in span if i in fresh]
            torch._foreach_copy_(into, gradients)
        if factor is None:
            return
        if self._taken.isdisjoint(span):
            flat.mul_(factor)  # one call for all of them, while they are in the cache
        elif left := [self.views[index] for index in span if index not in self._taken]:
            torch._foreach_mul_(left, factor)


def flag_used(flags: Tensor, unused: Iterable[int]) -> Tensor:
    """Set flags, `[tensors]`, to 1, and those of unused tensors to 0."""
    flags.fill_(1)
    for index in unused:
        flags[index].zero_()  # a number would be copied from the host
    return flags


def _spans(sizes: Sequence[int]) -> Iterator[range]:
    """Large tensors alone, and small ones together, as many as stay in the cache; sizes are bytes."""
    begin = filled = 0
    for index, size in enumerate(sizes):
        if index > begin and (size >= _LARGE_BYTES or filled + size > _SPAN_BYTES):
            yield range(begin, index)
            begin, filled = index, 0
        filled += size
        if size >= _LARGE_BYTES:
            yield range(begin, index + 1)
            begin, filled = index + 1, 0
    if begin < len(sizes):
        yield range(begin, len(sizes))

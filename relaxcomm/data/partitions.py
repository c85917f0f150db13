"""How a data set is divided into parts: for workers, or for clients that workers play in turn."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Declared, Rate, frozen

Indices: TypeAlias = NDArray[np.int64]


class Partition(Declared):
    """Base of all partitions: pure functions of the labels, the number of parts and a seed.

    Facts:
        needs_labels: it looks at the samples' classes.
        reshuffles: samples are dealt out anew in each epoch, so no part stays.
        keeps_order: a part is read in its own order; the others are shuffled each time they begin.

    Example:
        >>> import numpy
        >>> from relaxcomm.plugin import Partition, frozen
        >>> @frozen
        ... class odd_and_even(Partition):
        ...     def parts(self, size, labels, num_parts, seed):
        ...         return [numpy.arange(part, size, num_parts) for part in range(num_parts)]
        >>> [part.tolist() for part in odd_and_even().parts(5, None, 2, seed=0)]
        [[0, 2, 4], [1, 3]]
    """

    role: ClassVar[str] = "partition"
    needs_labels: ClassVar[bool] = False
    reshuffles: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False

    @abstractmethod
    def parts(self, size: int, labels: Indices | None, num_parts: int, seed: int) -> list[Indices]:
        """Indices of each part, of which there are `num_parts`, none empty; the same on all ranks.

        Raises: ConfigError if there are too few samples.
        """


@frozen
class iid(Partition):
    """All samples are shuffled and dealt out anew in each epoch.

    Example:
        >>> from relaxcomm.data import ShareSampler
        >>> from relaxcomm.plugin import Membership
        >>> from relaxcomm.primitives import iid
        >>> ranks, options = [Membership(0, 2), Membership(1, 2)], {"batch_size": 2, "seed": 0}
        >>> shares = [ShareSampler(4, membership=rank, partition=iid(), **options) for rank in ranks]
        >>> [[list(share) for share in shares] for epoch in range(2)]
        [[[[3, 1]], [[2, 0]]], [[[1, 2]], [[0, 3]]]]
    """

    reshuffles: ClassVar[bool] = True

    def parts(self, size: int, labels: Indices | None, num_parts: int, seed: int) -> list[Indices]:
        return disjoint().parts(size, labels, num_parts, seed)


@frozen
class disjoint(Partition):
    """Fixed parts of one shuffled order, of equal sizes to within one.

    Example:
        >>> from relaxcomm.primitives import disjoint
        >>> [len(part) for part in disjoint().parts(10, None, 3, seed=0)]
        [4, 3, 3]
    """

    def parts(self, size: int, labels: Indices | None, num_parts: int, seed: int) -> list[Indices]:
        _check_size(size, num_parts)
        order = np.random.default_rng([seed, num_parts]).permutation(size)
        return np.array_split(order, num_parts)


@frozen
class seldp(Partition):
    """SelSync's partition: every part is the whole data set, read in a circle from a place of its own.

    The shuffled order is cut into N chunks; worker n reads all of it, beginning with chunk n.

    Example:
        >>> from relaxcomm.primitives import seldp
        >>> first, second = seldp().parts(6, None, 2, seed=0)
        >>> first.tolist(), second.tolist()
        ([5, 2, 0, 1, 4, 3], [1, 4, 3, 5, 2, 0])

    Reference: Tyagi and Swany, "Accelerating Distributed ML Training via Selective Synchronization",
        IEEE CLUSTER 2023.
    """

    keeps_order: ClassVar[bool] = True

    def parts(self, size: int, labels: Indices | None, num_parts: int, seed: int) -> list[Indices]:
        chunks = disjoint().parts(size, labels, num_parts, seed)
        return [np.concatenate([*chunks[part:], *chunks[:part]]) for part in range(num_parts)]


@frozen
class by_label(Partition):
    """Each part holds neighbouring classes: the samples in the order of their labels, cut evenly.

    Example:
        >>> import numpy
        >>> from relaxcomm.primitives import by_label
        >>> [part.tolist() for part in by_label().parts(4, numpy.array([1, 0, 1, 0]), 2, seed=0)]
        [[1, 3], [0, 2]]
    """

    needs_labels: ClassVar[bool] = True

    def parts(self, size: int, labels: Indices | None, num_parts: int, seed: int) -> list[Indices]:
        _check_size(size, num_parts)
        assert labels is not None
        return np.array_split(np.argsort(labels, kind="stable"), num_parts)


@frozen
class dirichlet(Partition):
    """Each class is dealt out to the parts in proportions drawn from Dirichlet(alpha).

    A small alpha gives each part few classes, a large one all of them alike. Every sample is in one
    part; a part that got nothing takes a sample from the largest.

    Args:
        alpha: concentration, positive.

    Example:
        >>> import numpy
        >>> from relaxcomm.primitives import dirichlet
        >>> labels = numpy.arange(100) % 2
        >>> parts = dirichlet(alpha=0.1).parts(100, labels, 3, seed=0)
        >>> [numpy.bincount(labels[part], minlength=2).tolist() for part in parts]
        [[0, 4], [49, 46], [1, 0]]

    Reference: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification", arXiv 1909.06335.
    """

    alpha: Rate

    needs_labels: ClassVar[bool] = True

    def parts(self, size: int, labels: Indices | None, num_parts: int, seed: int) -> list[Indices]:
        _check_size(size, num_parts)
        assert labels is not None
        draw = np.random.default_rng([seed, num_parts])
        dealt: list[list[Indices]] = [[] for _ in range(num_parts)]
        for label in np.unique(labels):
            members = draw.permutation(np.flatnonzero(labels == label))
            shares = draw.dirichlet(np.full(num_parts, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
            for heap, found in zip(dealt, np.split(members, cuts), strict=True):
                heap.append(found)
        parts = [np.concatenate(heap) for heap in dealt]
        for index, part in enumerate(parts):
            if not len(part):
                largest = max(range(num_parts), key=lambda other: len(parts[other]))
                parts[index], parts[largest] = parts[largest][:1], parts[largest][1:]
        return [np.sort(part) for part in parts]


def labels_of(dataset: Any, labels: Any = None) -> Indices:
    """The class of every sample.

    Args:
        dataset: with `targets`, `labels`, or a TensorDataset whose last tensor holds them.
        labels: the classes themselves, `[size]`; None to look for them.

    Raises: ConfigError if they are not found.

    Example:
        >>> import torch
        >>> from relaxcomm.data import labels_of
        >>> labels_of(torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.tensor([1, 0, 1])))
        array([1, 0, 1])
    """
    found = labels
    if found is None:
        found = getattr(dataset, "targets", None)
    if found is None:
        found = getattr(dataset, "labels", None)
    if found is None and isinstance(dataset, torch.utils.data.TensorDataset):
        found = dataset.tensors[-1]
    if found is None:
        raise ConfigError(
            f"the partition needs every sample's class, which {type(dataset).__name__} does not tell: give "
            "it `targets` or `labels`, or pass labels=… to engine.loader"
        )
    try:
        array = np.asarray(found.detach().cpu() if isinstance(found, torch.Tensor) else found)
        classes = np.unique(array, return_inverse=True)[1]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the labels of {type(dataset).__name__} are no classes ({error}); the partition needs one "
            "number or one text for each sample"
        ) from None
    if array.ndim != 1 or len(array) != len(dataset):
        raise ConfigError(
            f"labels have the shape {list(array.shape)}; the partition needs one class for each of the "
            f"{len(dataset)} samples"
        )
    return classes.astype(np.int64)


def _check_size(size: int, num_parts: int) -> None:
    if size < num_parts:
        raise ConfigError(
            f"the data set has {size} samples, too few for {num_parts} parts; use fewer workers or clients"
        )

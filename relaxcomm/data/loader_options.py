"""What a loader that shares a data set out cannot take, and what to do instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from torch.utils.data import DataLoader, IterableDataset

from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import closest

_OWN_LOADER = (
    "train on a DataLoader of your own, in which each rank reads its part, such as every N-th sample: "
    "itertools.islice(samples, rank, None, world_size); where parts differ in length, wrap the loop in "
    "`with engine.join():`"
)
_REFUSED = {
    "shuffle": "engine.loader shuffles anew in every epoch; leave shuffle out, choose the partition seldp "
    "for a fixed order, or use a plain DataLoader for evaluation",
    "sampler": "engine.loader chooses the samples itself, so that no two ranks read the same; leave sampler "
    "out, choose another partition, or train on a DataLoader of your own with your sampler",
    "batch_sampler": "engine.loader makes the batches itself, of batch_size samples each; leave "
    "batch_sampler out, or train on a DataLoader of your own with yours",
    "generator": "engine.loader draws from the configuration's seed, which all ranks share; leave generator "
    "out and set seed",
}


class LoadingOptions(TypedDict, total=False):
    """The options of torch's DataLoader that a loader of a share hands on."""

    num_workers: int
    pin_memory: bool
    collate_fn: Callable[[list[Any]], Any] | None
    worker_init_fn: Callable[[int], None] | None
    prefetch_factor: int | None
    persistent_workers: bool
    multiprocessing_context: Any
    timeout: float


def check_options(options: Mapping[str, object], target: Callable[..., Any]) -> None:
    """Refuse options that neither `target` nor `LoadingOptions` names.

    Raises: ConfigError.
    """
    known = LoadingOptions.__annotations__
    for name in options:
        if name in known:
            continue
        if name in _REFUSED:
            raise ConfigError(_REFUSED[name])
        hidden = {"dataset", "membership", "seed", "plan", "progress", "options"}
        names = {*inspect.signature(target).parameters, *known} - hidden
        raise ConfigError(f"engine.loader has no option {name!r}{closest(name, names)}")


def check_map_style(dataset: Any) -> int:
    """The length of a data set whose samples have indices.

    Raises: ConfigError for one that is read from beginning to end, and for a loader.

    Example:
        >>> from relaxcomm.data import check_map_style
        >>> check_map_style(range(6))
        6
    """
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise ConfigError(
            f"{kind} makes batches, and a data set with an index is shared out; give its data set, such as "
            "engine.loader(loader.dataset, batch_size=64), or loop over the DataLoader itself"
        )
    if isinstance(dataset, IterableDataset):
        raise ConfigError(f"{kind} is an IterableDataset, which cannot be shared out by index; {_OWN_LOADER}")
    try:
        return len(dataset)
    except TypeError:
        raise ConfigError(
            f"{kind} has no length, so it cannot be shared out; give it __len__ and __getitem__, or "
            f"{_OWN_LOADER}"
        ) from None

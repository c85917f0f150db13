"""Sharing a data set out: from options to the loader of this rank's part."""

from __future__ import annotations

from typing import Any, Unpack

from torch.utils.data import Dataset

from relaxcomm.data.clients import ClientSampler, RoundPlan
from relaxcomm.data.injection import Injection
from relaxcomm.data.loader import ClientLoader, ShareLoader
from relaxcomm.data.loader_options import LoadingOptions, check_map_style, check_options
from relaxcomm.data.partitions import Partition, iid, labels_of
from relaxcomm.data.position import Progress
from relaxcomm.data.sampler import ShareSampler, check_batch_size
from relaxcomm.errors import ConfigError
from relaxcomm.network.transport import ALONE, Membership


def make_loader(
    dataset: Dataset[Any],
    *,
    batch_size: int,
    membership: Membership,
    seed: int,
    shard: Membership = ALONE,
    partition: Partition | None = None,
    injection: Injection | None = None,
    plan: RoundPlan | None = None,
    labels: Any = None,
    progress: Progress | None = None,
    drop_last: bool = False,
    **options: Unpack[LoadingOptions],
) -> ShareLoader | ClientLoader:
    """A DataLoader over this rank's share of `dataset`; see `ShareSampler` for who gets what.

    `loader.epoch` is the next epoch, or with clients the next round; set it to resume. What loading
    processes draw at random differs between ranks and between epochs.

    Args:
        dataset: map-style, with a length.
        batch_size: samples a worker and step.
        membership: this rank and the world size.
        seed: of the shuffling; the same on all ranks.
        shard: this rank among those that hold a replica together, who divide the batches of clients.
        partition: how the samples are divided over the workers, or over the clients; `iid()` if None.
        injection: what workers share in each step, or None.
        plan: of clients that the workers play in turn; one iteration is then one round.
        labels: class of every sample, `[size]`; None to look for them in the data set where needed.
        progress: which epoch is next; None to begin with the first.
        drop_last: leave out a smaller last batch.
        options: of torch's DataLoader, as there: num_workers, pin_memory, collate_fn, worker_init_fn,
            prefetch_factor, persistent_workers, multiprocessing_context and timeout; no others.

    Raises: ConfigError for a data set without length, with too few samples or without needed labels, or an
        option that cannot be honoured.

    Example:
        >>> from relaxcomm.data import make_loader
        >>> from relaxcomm.plugin import Membership
        >>> loader = make_loader(range(6), batch_size=2, membership=Membership(0, 1), seed=0)
        >>> sorted(int(x) for batch in loader for x in batch)
        [0, 1, 2, 3, 4, 5]
    """
    check_options(options, make_loader)
    size = check_map_style(dataset)
    _check_kind("partition", partition, Partition, "by_label()")
    _check_kind("injection", injection, Injection, "Injection(alpha=0.5, beta=0.5)")
    check_batch_size(batch_size)
    chosen, progress = partition or iid(), progress or Progress()
    shared: dict[str, Any] = {
        "batch_size": batch_size,
        "membership": membership,
        "seed": seed,
        "partition": chosen,
        "labels": labels_of(dataset, labels) if chosen.needs_labels else None,
    }
    seeds = seed, membership.rank * shard.world_size + shard.rank
    if plan is not None:
        if injection is not None or drop_last:
            raise ConfigError("clients train on whole parts of their own: leave out injection and drop_last")
        clients = ClientSampler(size, plan, shard=shard, **shared)
        return ClientLoader(dataset, clients, progress, seeds, **options)
    sampler = ShareSampler(size, drop_last=drop_last, injection=injection, progress=progress, **shared)
    return ShareLoader(dataset, sampler, seeds, **options)


def _check_kind(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigError(
            f"{name} is {value!r}; in Python give the object, such as {example}, or None; the YAML form "
            "belongs into the configuration"
        )

"""The transport to the other ranks, for whatever the training loop has given."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from relaxcomm.config import Config
from relaxcomm.errors import worded
from relaxcomm.network import InProcessGroup, TorchTransport, Transport, single
from relaxcomm.network.default_group import is_launched, make_default_group
from relaxcomm.network.secret import Secret
from relaxcomm.replica.shard_groups import find_shard_groups


def connect(
    undo: ExitStack, model: nn.Module, settings: Config, group: Any, secret: Secret | None
) -> tuple[Transport, bool]:
    """Meet the other ranks.

    Args:
        undo: closes it where attach fails, and tells the others of the error.
        model: that is attached, on its device.
        settings: by which they meet.
        group: the ranks that take part, or a transport between them; None for all, or for those that the
            mesh of a sharded model tells.
        secret: that all share, or None.

    Returns: the transport, and whether the default process group was made here.
    """
    owned = group is None and is_launched(elastic=settings.membership.elastic)
    if owned:
        make_default_group(settings.timeout_seconds, secret)
        undo.callback(dist.destroy_process_group)
    transport = _transport(model, settings, group, secret)

    def tell(kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            transport.announce(f"failed: {worded(error)}")

    undo.callback(transport.close)
    undo.push(tell)
    return transport, owned


def _transport(model: nn.Module, settings: Config, group: Any, secret: Secret | None) -> Transport:
    if isinstance(group, Transport):
        return group
    if isinstance(group, InProcessGroup):
        return group.transport()
    if group is None and not dist.is_initialized():
        return single()
    options = transport_options(model, settings)

    def between(ranks: Any) -> TorchTransport:
        return TorchTransport.of(ranks, secret=secret, **options)

    groups = find_shard_groups(model, group)
    if groups is None:
        return between(group)
    shards = between(groups.shards)
    try:
        replicas = between(groups.replicas)
    except BaseException:
        shards.close()
        raise
    replicas.shards = shards
    return replicas


def transport_options(model: nn.Module, settings: Config) -> dict[str, Any]:
    """With what transports between ranks are made, whoever these are."""
    return {
        "device": next((p.device for p in model.parameters()), torch.device("cpu")),
        "backend": settings.backend,
        "timeout_seconds": settings.timeout_seconds,
        "debug": settings.debug,
        "elastic": settings.membership.elastic,
        "grace_seconds": settings.membership.grace_seconds,
    }

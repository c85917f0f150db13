"""One rank's tensors for all: as the first broadcast of a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from relaxcomm.network.operations import Broadcast, Label
from relaxcomm.network.transport import Transport
from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.named_parameters import named_buffers, named_parameters
from relaxcomm.replica.sharding import item_of
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.items import Item


def broadcast(model: nn.Module, transport: Transport, bucket_bytes: int, *, root: int = 0) -> None:
    """Copy parameters and buffers of rank `root` to all ranks, but for sparse and expanded ones."""
    items = [item_of(name, p) for name, p in named_parameters(model)]
    items += [Item(name, buffer) for name, buffer in named_buffers(model) if can_be_copied(buffer)]
    copy(items, transport, bucket_bytes, root=root)


def copy(items: Iterable[Item], transport: Transport, bucket_bytes: int, *, root: int) -> None:
    """Copy tensors of rank `root` into those of all ranks, which have the same names and shapes."""
    for bucket in build_buckets(items, bucket_bytes=bucket_bytes):
        flat = bucket.gather(bucket.empty())
        raw = flat.view(torch.uint8)  # any dtype travels as bytes; Gloo refuses int16 and float8
        if raw.numel():
            on_host = raw.device.type == "cpu"  # as an optimizer may keep its own, beside a model on a GPU
            transport.issue(Broadcast(raw, root, on_host), Label(0, "broadcast", bucket.index)).wait()
            bucket.scatter(flat)

"""One rank's tensors for all: as the first broadcast of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from relaxcomm.network.operations import Agree, Broadcast, Label, Received
from relaxcomm.network.transport import Transport
from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.named_parameters import named_buffers, named_parameters
from relaxcomm.replica.sharding import item_of
from relaxcomm.step.world import tensor_of
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.digest import checksum
from relaxcomm.tensors.items import Item


def broadcast(model: nn.Module, transport: Transport, bucket_bytes: int, *, root: int = 0) -> None:
    """Copy parameters and buffers of rank `root` to all ranks, but for sparse and expanded ones.

    What all hold is not sent, by checksums: a model that each has loaded may be large, and its network slow.
    """
    items = [item_of(name, p) for name, p in named_parameters(model)]
    items += [Item(name, buffer) for name, buffer in named_buffers(model) if can_be_copied(buffer)]
    differs = differing(items, lambda asked: transport.issue(asked, Label(0, "broadcast")).wait())
    items = [item for item, is_other in zip(items, differs.tolist(), strict=True) if is_other]
    copy(items, transport, bucket_bytes, root=root)


def differing(items: Sequence[Item], ask: Callable[[Agree], Received]) -> Tensor:
    """Of which tensors the ranks hold different bits, by checksums, `[len(items)]`.

    Args:
        items: the tensors, on all ranks the same.
        ask: all ranks for the largest of some numbers.
    """
    device = items[0].tensor.device
    sums = torch.stack([checksum(item.tensor).to(device) for item in items]).cpu().double()
    largest, smallest = tensor_of(ask(Agree(torch.cat([sums, -sums]), "max"))).view(2, -1)
    differs: Tensor = largest != -smallest
    return differs


def copy(items: Iterable[Item], transport: Transport, bucket_bytes: int, *, root: int) -> None:
    """Copy tensors of rank `root` into those of all ranks, which have the same names and shapes."""
    for bucket in build_buckets(items, bucket_bytes=bucket_bytes):
        flat = bucket.gather(bucket.empty())
        raw = flat.view(torch.uint8)  # any dtype travels as bytes; Gloo refuses int16 and float8
        if raw.numel():
            on_host = raw.device.type == "cpu"  # as an optimizer may keep its own, beside a model on a GPU
            transport.issue(Broadcast(raw, root, on_host), Label(0, "broadcast", bucket.index)).wait()
            bucket.scatter(flat)

"""The named tensors that lie in buckets, and what this rank has of one that is sharded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Item:
    """One named tensor that lies in a bucket.

    Args:
        name: by which rules select it.
        tensor: the parameter or its gradient, of any shape; of a sharded one what this rank holds.
        sharded: the parameter whose shard it is, None where it is whole.
        num_shards: into how many parts that is cut.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Bucket, Item
        >>> Bucket(0, [Item("weight", torch.zeros(2, 3)), Item("bias", torch.zeros(2))]).numel
        8
    """

    name: str
    tensor: Tensor
    sharded: Tensor | None = None
    num_shards: int = 1

    @property
    def parameter(self) -> Tensor:
        """What the model and its optimizer hold: the tensor itself, or that of which it is a shard."""
        return self.tensor if self.sharded is None else self.sharded

    @property
    def grad(self) -> Tensor | None:
        """The parameter's gradient, of a sharded one this rank's part of it."""
        if self.sharded is None:
            return self.tensor.grad
        return None if self.sharded.grad is None else local(self.sharded.grad)

    @property
    def share_bytes(self) -> int:
        """What it counts for in a bucket, the same on all ranks."""
        return -(-self.parameter.numel() // self.num_shards) * self.tensor.element_size()


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, which may be sharded (a DTensor)."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():  # else it would be a part of autograd's graph
        held: Tensor = to_local()
    return held

"""What an operator costs on a GPU: the host's wait, a kernel, the bytes that it moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_READ_ON_THE_HOST = frozenset(
    (
        *("_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "bincount"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
        *("linalg_svd", "_linalg_svd", "_linalg_eigh", "linalg_eig", "multinomial"),
    )
)
"""Operators whose result, or its size, the host must know."""
_ALLOCATIONS = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
_PUTS = frozenset(("index_put", "index_put_", "_index_put_impl_"))
_INDEXING = _PUTS | {"index", "_unsafe_index"}
_MASKS = (torch.bool, torch.uint8)


@dataclass
class GpuWork:
    """What a program has asked of a GPU.

    Args:
        waits: the places in which the host waited, one an occurrence, "operator at file:line".
        kernels: how often each operator was launched.
        num_bytes: that these have read and written, if each reads and writes its tensors once.
    """

    waits: list[str] = field(default_factory=list)
    kernels: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0

    @property
    def launches(self) -> int:
        """All kernels together."""
        return self.kernels.total()

    def clear(self) -> None:
        """Begin to count anew."""
        self.waits.clear()
        self.kernels.clear()
        self.num_bytes = 0

    def count(self, func: torch._ops.OpOverload, tensors: Sequence[Tensor]) -> None:
        """A kernel that touches so many tensors."""
        self.count_kernel(operator_of(func), tensors)

    def count_kernel(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Count a kernel that is no operator of torch's."""
        self.kernels[name] += 1
        self.num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def operator_of(func: torch._ops.OpOverload) -> str:
    """The name of an operator without its overload."""
    return func._schema.name.removeprefix("aten::")


def makes_view(func: torch._ops.OpOverload) -> bool:
    """Whether nothing is launched: a view, or memory that is not written."""
    if operator_of(func) in _ALLOCATIONS:
        return True
    returned = [one.alias_info for one in func._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def makes_host_wait(
    func: torch._ops.OpOverload, tensors: Iterable[Tensor], words: Mapping[str, object]
) -> bool:
    """Whether the host must know what an operator finds on the GPU before it can go on."""
    name = operator_of(func)
    if name in _INDEXING:  # by a mask: how many entries come out is not known before
        return any(tensor.dtype in _MASKS for tensor in list(tensors)[1:])
    if str(func) == "aten.repeat_interleave.Tensor":
        return words.get("output_size") is None
    return name in _READ_ON_THE_HOST


def waits_before_it_writes(name: str) -> bool:
    """Whether the host waits for what the operator's last kernel needs, and not for that kernel."""
    return name in _INDEXING or name in ("nonzero", "masked_select", "repeat_interleave")


def fills_by_mask(name: str, tensors: Sequence[Tensor], are_on_gpu: Sequence[bool]) -> bool:
    """Whether torch fills with a number of the host where a mask is True, which nobody needs to count."""
    if name not in _PUTS or len(tensors) != 3:
        return False
    return tensors[1].dtype in _MASKS and tensors[2].numel() == 1 and list(are_on_gpu) == [True, True, False]


def reads_and_writes(
    func: torch._ops.OpOverload, args: Sequence[object], words: Mapping[str, object], out: object
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors whose entries an operator reads, and those that it writes."""
    name, schema = operator_of(func), func._schema
    given = zip((argument.name for argument in schema.arguments), args, strict=False)
    named = {**dict(given), **words}
    found: tuple[list[Tensor], list[Tensor]] = [], []
    only_looks_at_shapes = name.startswith("new_") or name.endswith("_like")
    for argument in schema.arguments:
        alias = argument.alias_info
        is_written = alias is not None and alias.is_write
        if is_written or not only_looks_at_shapes:
            found[is_written].extend(_tensors_in(named.get(argument.name)))
    if all(one.alias_info is None for one in schema.returns):
        found[True].extend(_tensors_in(out))
    return found


def _tensors_in(value: object) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]

"""What servers and their clients have in common: shards, how a push is coded, how an answer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.network.operations import Request
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.sharded_exchange import ShardedExchange
from relaxcomm.roles import Compressor, Context, ExchangeFacts, Exchanging, Stage, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import ALL_KINDS, SHARED_SUPPORT
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import (
    NestedState,
    shard_bucket,
    shard_layouts,
    shard_sizes,
    shards_of,
)
from relaxcomm.topology import Topology

HEADER_BYTES = 16  # two 8-byte numbers
_HOST = torch.device("cpu")


class ParameterServer(ShardedExchange):
    """An exchange with a server whose parts lie on the ranks; each part of a push is coded on its own."""

    facts: ClassVar[ExchangeFacts] = replace(
        all_reduce.facts,
        accepts=ALL_KINDS - {SHARED_SUPPORT},  # clocks, so draws, are each worker's own
        collective=False,
        same_result=False,
        several_rounds=False,
        returns="base",
        takes_divided=False,
        coding="parts",
        service={"values": "part"},
    )

    def coded_bytes(self, compressor: Compressor, layout: Layout, element_bytes: int, world_size: int) -> int:
        coded = super().coded_bytes(compressor, layout, element_bytes, world_size)
        return world_size * HEADER_BYTES + coded

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return [Stage(Request)]


def pushed(
    cx: Context, tensor: Tensor, compressor: Compressor, state: State, numbers: tuple[int, int]
) -> Exchanging:
    """Push `tensor` (`[numel]`) to the shards and copy their values into it; their answers, a row each."""
    replies = yield make_request(cx, tensor, compressor, state, numbers)  # which is not held until they come
    assert isinstance(replies, Tensor), "answers are rows"
    kept = wide(tensor.dtype)
    for reply, (_, shard) in zip(replies, shards_of(tensor, len(replies)), strict=True):
        values = reply[HEADER_BYTES : HEADER_BYTES + kept.itemsize * shard.numel()].view(kept)
        shard.copy_(values.to(shard.device, non_blocking=True))
    return replies


def make_request(
    cx: Context, tensor: Tensor, compressor: Compressor, state: State, numbers: tuple[int, int]
) -> Request:
    """A push of `tensor` (`[numel]`) to the shards, each coded on its own, behind two numbers."""
    sizes = shard_sizes(tensor.numel(), cx.membership.world_size)
    packed = [
        encode(cx.part(start, shard.numel()), shard, compressor, NestedState(state, index))
        for index, (start, shard) in enumerate(shards_of(tensor, len(sizes)))
    ]
    rows = _matrix(len(sizes), HEADER_BYTES + max(one.numel() for one in packed), tensor.device)
    rows[:, :HEADER_BYTES] = header(*numbers, tensor.device)
    for row, one in zip(rows[:, HEADER_BYTES:], packed, strict=True):
        row[: one.numel()] = one
        row[one.numel() :] = 0
    return Request(rows, _matrix(len(sizes), _reply_bytes(sizes, tensor.dtype)))


class ShardPlan:
    """Which part of a bucket this rank serves, and what requests and answers look like."""

    def __init__(self, cx: Context, bucket: Bucket, compressor: Compressor) -> None:
        rank, self.world_size = cx.membership.rank, cx.membership.world_size
        sizes = shard_sizes(bucket.numel, self.world_size)
        start = sum(sizes[:rank])
        self._part = slice(start, start + sizes[rank])
        parts = shard_layouts(bucket.layout, self.world_size)
        known = cx.at(layout=parts[rank])
        self.decoder = Decoder(compressor, known, shard_bucket(bucket, parts[rank], device=_HOST))
        self.kept = shard_bucket(bucket, parts[rank], wide(bucket.dtype), _HOST)
        width = max(compressor.layout_bytes(part, bucket.dtype.itemsize) for part in parts)
        # What they look like: memory of theirs would stay.
        self.request = torch.empty(HEADER_BYTES + width, dtype=torch.uint8, device="meta")
        self.reply = torch.empty(_reply_bytes(sizes, bucket.dtype), dtype=torch.uint8, device="meta")

    def first_values(self, bucket: Bucket) -> Tensor:
        """The parameters of this rank's part as they are now, on the CPU."""
        whole = bucket.gather(bucket.temporary())
        # No view, which would keep the whole.
        return whole[self._part].to("cpu", wide(bucket.dtype), copy=True)

    def request_of(self, number: int) -> Request:
        """A request to all shards that pushes nothing, only a number."""
        row = torch.zeros_like(self.request, device=_HOST)
        row[:HEADER_BYTES] = header(number, 0)
        return Request(row.expand(self.world_size, -1), _matrix(self.world_size, self.reply.numel()))

    def reply_of(self, number: int, values: Tensor) -> Tensor:
        """An answer: a number and the values of a shard, padded to the length that clients expect."""
        reply, payload = _matrix(1, self.reply.numel())[0], values.view(torch.uint8)
        reply[:HEADER_BYTES] = header(number, 0)
        reply[HEADER_BYTES : HEADER_BYTES + payload.numel()] = payload
        reply[HEADER_BYTES + payload.numel() :] = 0
        return reply

    def pushed_in(self, request: Tensor) -> Tensor:
        """What a client pushes, which may be a view of its request."""
        return self.decoder(request[HEADER_BYTES:])


class Decoder:
    """Turns what one client pushed back into a tensor, which may be a view of it.

    Args:
        compressor: of the clients.
        cx: what it may know.
        shard: what is pushed, on the CPU: a service's thread has no stream of a device to itself.
    """

    def __init__(self, compressor: Compressor, cx: Context, shard: Bucket) -> None:
        self._compressor, self._cx, self._shard = compressor, cx, shard

    def __call__(self, data: Tensor) -> Tensor:
        state = dict(self._compressor.init(self._shard))
        nothing = buffer_pool.empty(self._shard.numel, self._shard.dtype, _HOST).zero_()
        coding = self._compressor.encode_decode(self._cx, nothing, state, keep_sent=False)
        message = next(coding).unpack(data)
        return finish(coding, ((1.0, message),))[0].to(wide(self._shard.dtype))


def header(first: int, second: int, device: torch.device = _HOST) -> Tensor:
    """Two numbers as `HEADER_BYTES` bytes; filled in, as a copy to a device would be waited for."""
    numbers = torch.empty(2, dtype=torch.int64, device=device)
    numbers[0], numbers[1] = first, second
    return numbers.view(torch.uint8)


def read_header(message: Tensor) -> tuple[int, int]:
    first, second = message[:HEADER_BYTES].clone().view(torch.int64).tolist()
    return first, second


def _matrix(num_rows: int, row_bytes: int, device: torch.device = _HOST) -> Tensor:
    """Bytes that live as long as one exchange."""
    return buffer_pool.empty(num_rows * row_bytes, torch.uint8, device).view(num_rows, row_bytes)


def _reply_bytes(sizes: Sequence[int], dtype: torch.dtype) -> int:
    return HEADER_BYTES + wide(dtype).itemsize * max(sizes)


def encode(cx: Context, shard: Tensor, compressor: Compressor, state: State) -> Tensor:
    """What is pushed, as bytes; the compressor keeps what they leave out."""
    coding = compressor.encode_decode(cx, shard, state, keep_sent=False)
    message = next(coding)
    packed = message.pack()
    finish(coding, ((1.0, message),))
    return packed

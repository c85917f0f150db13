"""A parameter server that is sharded over the workers themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from relaxcomm.buckets import Bucket
from relaxcomm.frozen import frozen
from relaxcomm.messages import DENSE, SPARSE
from relaxcomm.operations import Request
from relaxcomm.pieces import PieceState, piece_bucket, piece_sizes
from relaxcomm.primitives.compressors.reading import finish
from relaxcomm.protocol import Compressor, Context, Exchange, Exchanging, Served, State
from relaxcomm.topology import Topology
from relaxcomm.transport.base import Service

Staleness = Annotated[float, Field(ge=0)]

_HEADER_BYTES = 16  # two 8-byte numbers: clock and need upwards, least and own clock downwards


@frozen
class server(Exchange):
    """Push what this worker has moved, read parameters that miss at most `staleness` of the others' clocks.

    Each rank keeps one shard of the parameters `x` on its CPU and adds up what workers push, `x <- x -
    delta_n / N`. A worker at clock c (its number of pushes) gets an answer once every push stamped at
    most `c - staleness - 1` is in it; its own are always in it, and newer ones as they come. Staleness
    0 is bulk-synchronous, infinity never waits. A worker that has finished goes on serving until all
    have.

    Args:
        staleness: in clocks, 0 or more, or infinity.

    Example:
        >>> server(staleness=3)
        server(staleness=3.0)

    Reference: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
        Server", NIPS 2013.

    Differs from the paper: a worker reads once a clock, after its push; pushes are averaged.
    """

    staleness: Staleness

    accepts: ClassVar[frozenset[str]] = frozenset({DENSE, SPARSE})
    collective: ClassVar[bool] = False
    same_result: ClassVar[bool] = False
    returns_base: ClassVar[bool] = True

    def pieces(self, numel: int, world_size: int) -> Sequence[int]:
        return piece_sizes(numel, world_size)

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        sizes = self.pieces(tensor.numel(), cx.membership.world_size)
        need = 0 if math.isinf(self.staleness) else max(0, cx.round + 1 - int(self.staleness))
        rows = [
            _encode(cx, piece, compressor, PieceState(state, index))
            for index, piece in enumerate(torch.split(tensor, list(sizes)))
        ]
        width = max(row.numel() for row in rows)
        requests = torch.zeros(len(rows), _HEADER_BYTES + width, dtype=torch.uint8)
        requests[:, :_HEADER_BYTES] = _header(cx.round, need)
        for request, row in zip(requests, rows, strict=True):
            request[_HEADER_BYTES : _HEADER_BYTES + row.numel()] = row
        kept = _kept_dtype(tensor.dtype)
        replies = torch.empty(len(rows), _HEADER_BYTES + kept.itemsize * max(sizes), dtype=torch.uint8)
        received = yield Request(requests, replies)
        assert isinstance(received, Tensor)
        least = min(_read_header(reply)[0] for reply in received)
        cx.note("staleness_steps", max(0, cx.round + 1 - least))
        values = [
            reply[_HEADER_BYTES : _HEADER_BYTES + kept.itemsize * size].view(kept)
            for reply, size in zip(received, sizes, strict=True)
        ]
        return torch.cat(values).to(tensor.device, tensor.dtype)

    def serve(self, cx: Context, bucket: Bucket, compressor: Compressor) -> Served:
        rank, world_size = cx.membership.rank, cx.membership.world_size
        sizes = self.pieces(bucket.numel, world_size)
        start = sum(sizes[:rank])
        mine = bucket.gather(bucket.empty())[start : start + sizes[rank]]
        kept = _kept_dtype(bucket.dtype)
        coder = _Decoder(compressor, cx, piece_bucket(bucket, sizes[rank]))
        width = max(compressor.message_bytes(size, bucket.dtype.itemsize) for size in sizes)
        request = torch.empty(_HEADER_BYTES + width, dtype=torch.uint8)
        reply = torch.empty(_HEADER_BYTES + kept.itemsize * max(sizes), dtype=torch.uint8)
        return Served(Shard(mine.to("cpu", kept), coder, world_size, reply.numel()), request, reply)

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return 2 * (world_size - 1) / world_size * message_bytes


class Shard(Service):
    """One rank's part of the parameters, and who waits for what.

    Args:
        values: the first values, `[n]`, on the CPU; kept.
        decoder: of what clients push.
        world_size: number of clients.
        reply_bytes: length of an answer, which is that of the largest shard.
    """

    def __init__(self, values: Tensor, decoder: _Decoder, world_size: int, reply_bytes: int) -> None:
        self._values, self._decoder, self._reply_bytes = values, decoder, reply_bytes
        self._clocks = [0.0] * world_size  # number of pushes of each client; infinity once it has left
        self._needs: dict[int, int] = {}

    def answer(self, client: int, request: Tensor) -> list[tuple[int, Tensor]]:
        clock, need = _read_header(request)
        self._values.sub_(self._decoder(request[_HEADER_BYTES:]), alpha=1 / len(self._clocks))
        self._clocks[client] = clock + 1
        self._needs[client] = need
        return self._answers()

    def leave(self, client: int) -> list[tuple[int, Tensor]]:
        self._clocks[client] = math.inf
        return self._answers()

    def export(self) -> dict[str, Tensor]:
        return {"values": self._values.clone(), "clocks": torch.tensor(self._clocks)}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._values.copy_(saved["values"])
        self._clocks = saved["clocks"].tolist()

    def _answers(self) -> list[tuple[int, Tensor]]:
        least = min(self._clocks)
        ready = [client for client, need in self._needs.items() if need <= least]
        if not ready:
            return []
        reply = torch.zeros(self._reply_bytes, dtype=torch.uint8)
        reply[:_HEADER_BYTES] = _header(0 if math.isinf(least) else int(least), 0)
        values = self._values.view(torch.uint8)
        reply[_HEADER_BYTES : _HEADER_BYTES + values.numel()] = values
        for client in ready:
            del self._needs[client]
        return [(client, reply) for client in ready]


class _Decoder:
    """Turns what one client pushed back into a tensor."""

    def __init__(self, compressor: Compressor, cx: Context, piece: Bucket) -> None:
        self._compressor, self._cx, self._piece = compressor, cx, piece

    def __call__(self, data: Tensor) -> Tensor:
        state = dict(self._compressor.init(self._piece))
        coding = self._compressor.code(self._cx, self._piece.zeros().cpu(), state, keep_own=False)
        message = next(coding).unpack(data)
        return finish(coding, ((1.0, message),))[0].to(_kept_dtype(self._piece.dtype))


def _encode(cx: Context, piece: Tensor, compressor: Compressor, state: State) -> Tensor:
    coding = compressor.code(cx, piece, state, keep_own=False)
    message = next(coding)
    packed = message.pack().cpu()
    finish(coding, ((1.0, message),))
    return packed


def _kept_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which a shard is kept: at least float32, so that small pushes are not lost."""
    return torch.promote_types(dtype, torch.float32)


def _header(first: int, second: int) -> Tensor:
    return torch.tensor([first, second], dtype=torch.int64).view(torch.uint8)


def _read_header(message: Tensor) -> tuple[int, int]:
    first, second = message[:_HEADER_BYTES].clone().view(torch.int64).tolist()
    return first, second

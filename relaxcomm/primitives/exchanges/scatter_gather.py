"""Exchanges in which each worker combines one part of the messages for all."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import AllGather, AllToAll, Operation, Received
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.decoding import finish
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.compressors.uniform_quantizer import sum_quantized
from relaxcomm.roles import Compressor, Context, Exchange, Exchanging, State
from relaxcomm.tensors.bit_packing import pack_codes, unpack_codes
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import ALL_KINDS, SIGNS, Message, Signs
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import (
    PieceState,
    padded_bytes,
    piece_bucket,
    piece_layouts,
    piece_sizes,
    piece_slots,
    pieces_of,
    stacked,
)
from relaxcomm.topology import Topology


@frozen
class scatter_gather(Exchange):
    """Each worker decodes and averages one part of all messages, and sends the mean back, coded again.

    With x cut into N parts, worker m gets `C(x_n[m])` from every n, forms `a_m = (1/N) sum_n C(x_n[m])`, and
    all get `C(a_m)`. A rank sends `2 (N - 1) / N` of a message, as a ring does of summable ones; each
    part is coded on its own. All ranks decode the same bytes, so they end with the same result.

    Args:
        server_feedback: keep what the second coding leaves out and add it to the next mean (two-sided error
            feedback, with `error_feedback` around the rule's compressor). Without it the second coding
            has no memory, whatever the first one has.

    Example:
        >>> scatter_gather(server_feedback=True)
        scatter_gather(server_feedback=True)

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022;
        Tang et al., "DoubleSqueeze", ICML 2019, for the second residual.
    """

    server_feedback: bool = False

    accepts: ClassVar[frozenset[str]] = ALL_KINDS
    operations: ClassVar[int] = 2
    several_rounds: ClassVar[bool] = False

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        rank, num_pieces = membership.rank, membership.world_size
        slots = piece_slots(bucket, num_pieces, compressor.init)
        mine = piece_bucket(bucket, piece_layouts(bucket, num_pieces)[rank])
        PieceState(slots, num_pieces).update(self._second(compressor).init(mine))
        return slots

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, num_pieces = cx.membership.rank, cx.membership.world_size
        pieces = list(pieces_of(tensor, piece_sizes(tensor.numel(), num_pieces)))
        known = [cx.part(start, piece.numel()) for start, piece in pieces]
        codings = [
            compressor.code(known[index], piece, PieceState(state, index), keep_own=False)
            for index, (_, piece) in enumerate(pieces)
        ]
        messages = [next(coding) for coding in codings]
        received = yield from _to_owners(messages)
        parts = [(1 / num_pieces, messages[rank].unpack(row)) for row in received]
        mean, _ = finish(codings[rank], parts)
        again = known[rank].part(0, mean.numel())  # a place of its own: its draws are not those of the first
        if not self.server_feedback:  # which keeps what a shorter type cannot hold
            mean = mean.to(tensor.dtype)
        own = self._second(compressor).code(again, mean, PieceState(state, num_pieces), keep_own=False)
        message = next(own)
        rows = yield from _to_all(message, received.shape[1])
        # The coders of the other parts read the means of those, and only now keep what they left out.
        codings[rank], messages[rank] = own, message
        kept = wide(tensor.dtype)
        result = tensor if tensor.dtype == kept else torch.empty_like(tensor, dtype=kept)
        for (start, piece), coding, message, row in zip(pieces, codings, messages, rows, strict=True):
            mean, _ = finish(coding, ((1.0, message.unpack(row)),))
            result[start : start + piece.numel()] = mean
        return result

    def coded_bytes(self, compressor: Compressor, layout: Layout, element_bytes: int, world_size: int) -> int:
        return padded_bytes(compressor, layout, element_bytes, world_size)

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return 2 * (world_size - 1) / world_size * message_bytes

    def _second(self, compressor: Compressor) -> Compressor:
        """What codes the means."""
        plain = compressor.plain
        return error_feedback(compressor=plain) if self.server_feedback else plain


@frozen
class vote(Exchange):
    """The sign that most workers have: `sign(sum_n sign(x_n))`, 1 or -1 for each entry.

    Each worker counts the votes on one part for all and sends the majority back, one bit an entry in both
    directions. Where there are as many for as against, the worker that counts decides by its own sign. A
    tensor that is not finite on some worker becomes NaN on all.

    Example:
        >>> vote()
        vote()

    Reference: Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant",
        ICLR 2019.

    Differs from the paper: there is no server; entries with as many for as against do not become 0.
    """

    accepts: ClassVar[frozenset[str]] = frozenset({SIGNS})
    operations: ClassVar[int] = 2
    several_rounds: ClassVar[bool] = False
    counts_votes: ClassVar[bool] = True

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        return piece_slots(bucket, membership.world_size, compressor.init)

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, num_pieces = cx.membership.rank, cx.membership.world_size
        pieces = list(pieces_of(tensor, piece_sizes(tensor.numel(), num_pieces)))
        messages = [
            next(
                compressor.code(
                    cx.part(start, piece.numel()), piece, PieceState(state, index), keep_own=False
                )
            )
            for index, (start, piece) in enumerate(pieces)
        ]
        received = yield from _to_owners(messages)
        rows = yield from _to_all(_majority(messages[rank], received, rank), received.shape[1])
        votes = [
            sum_quantized(((1.0, message.unpack(row)),), piece)
            for (_, piece), message, row in zip(pieces, messages, rows, strict=True)
        ]
        return torch.cat(votes)

    def coded_bytes(self, compressor: Compressor, layout: Layout, element_bytes: int, world_size: int) -> int:
        return padded_bytes(compressor, layout, element_bytes, world_size)

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return 2 * (world_size - 1) / world_size * message_bytes


def _majority(own: Message, rows: Tensor, rank: int) -> Signs:
    """What most of the received messages say, as signs of size 1."""
    assert isinstance(own, Signs), f"votes are counted on signs, got {own!r}"
    numel = own.segments.numel
    count = torch.zeros(numel, dtype=torch.int32, device=own.codes.device)
    steps = torch.full_like(own.steps, 2.0)
    for voter, row in enumerate(rows):
        message = own.unpack(row)
        count += unpack_codes(message.codes, numel, 2) * (3 if voter == rank else 2)
        steps += 0 * message.steps  # NaN where the voter's tensor is not finite
    return replace(own, codes=pack_codes(count.gt(len(rows)).view(torch.uint8), 2), steps=steps)


_Swapping: TypeAlias = Generator[Operation, Received, Tensor]


def _to_owners(messages: Sequence[Message]) -> _Swapping:
    """Send each rank the message of its part; those of smaller parts are filled up with zeros."""
    received = yield AllToAll(stacked([message.pack() for message in messages]))
    assert isinstance(received, Tensor)
    return received


def _to_all(message: Message, width: int) -> _Swapping:
    packed = message.pack()
    filled = torch.cat([packed, packed.new_zeros(width - packed.numel())])
    received = yield AllGather(filled)
    assert isinstance(received, Tensor)
    return received

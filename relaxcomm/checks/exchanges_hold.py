"""Checks of exchanges: bytes, operations and results on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from relaxcomm.checks.finding import expect
from relaxcomm.checks.round_trip import context
from relaxcomm.network import InProcessGroup, simulate
from relaxcomm.network.operations import Label
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.sign import sign
from relaxcomm.roles import Compressor, Exchange
from relaxcomm.tensors.buckets import Bucket, Item
from relaxcomm.tensors.layout import one_tensor
from relaxcomm.tensors.messages import DENSE
from relaxcomm.topology import Topology, complete, hierarchical

_NUMEL = 600  # divided by 2, 3 and 4, so that shares are equal
_SIZES = (2, 3, 4)
_PLACE = ("0", 0)


def topology_of(exchange: Exchange, size: int) -> Topology:
    """One that the exchange can use."""
    return hierarchical(sizes=(1,) * (size - 2) + (2,)) if exchange.uses_topology == "groups" else complete()


def coder_for(exchange: Exchange) -> Compressor:
    """A compressor whose messages the exchange takes."""
    return identity() if DENSE in exchange.accepts else sign()


def exchanged(exchange: Exchange, compressor: Compressor, size: int) -> list[tuple[Tensor, int, int]]:
    """What each rank ends with, the operations that it took, and the bytes that it sent."""
    graph = topology_of(exchange, size)

    def rank(group: InProcessGroup) -> tuple[Tensor, int, int]:
        transport, tensor = group.transport(), own_tensor(group.rank())
        cx = replace(context(group.rank(), size), topology=graph)
        bucket = Bucket(0, [Item("tensor", tensor.clone())])
        state = dict(exchange.coding_slots(bucket, compressor, cx.membership)) | dict(exchange.init(bucket))
        served = exchange.serve(cx, bucket, compressor)
        if served is not None:
            transport.serve(_PLACE, served.service, served.request, served.reply)
        running = exchange.run(cx, tensor, compressor, state)
        operation, operations = next(running), 0
        while True:
            operations += 1
            received = transport.issue(operation, Label(0, *_PLACE, operations)).wait()
            try:
                operation = running.send(received)
            except StopIteration as stop:
                transport.leave()
                rest = None if served is None else served.service.rest()
                result = stop.value if rest is None else stop.value + rest
                return result, operations, transport.counters.sent

    return simulate(rank, size)


def own_tensor(rank: int) -> Tensor:
    """What a rank puts in."""
    return torch.randn(_NUMEL, generator=torch.Generator().manual_seed(rank))


def traffic_is_declared(exchange: Exchange, compressor: Compressor) -> None:
    """The number of operations, and the bytes on average over the ranks."""
    for size in _SIZES:
        found = exchanged(exchange, compressor, size)
        operations = {count for _, count, _ in found}
        declared = compressor.rounds * exchange.operations
        expect(operations == {declared}, f"declares {declared} operations, took {operations} on {size} ranks")
        message_bytes = exchange.coded_bytes(compressor, one_tensor(_NUMEL), 4, size)
        bytes_sent = exchange.bytes_sent(message_bytes, size, topology_of(exchange, size))
        bytes_sent += exchange.answers_sent(4 * _NUMEL, size, topology_of(exchange, size))
        seen = sum(sent for _, _, sent in found) / size
        slack = 64 * size + 0.02 * bytes_sent  # headers of answers
        expect(
            abs(seen - bytes_sent) <= slack,
            f"declares {bytes_sent:.0f} bytes, sent {seen:.0f} on {size} ranks",
        )


def results_are_declared(exchange: Exchange, compressor: Compressor) -> None:
    """Ranks that should end with the same tensor do, and a mean is the mean."""
    for size in _SIZES:
        results = torch.stack([result for result, _, _ in exchanged(exchange, compressor, size)])
        if exchange.same_result:
            same = bool((results == results[0]).all())
            expect(same, f"declares the same result on all ranks, but they differ on {size} ranks")
        if compressor.linear and not exchange.returns_base and not exchange.counts_votes:
            put_in = torch.stack([own_tensor(rank) for rank in range(size)]).mean(0)
            off = float((results.mean(0) - put_in).abs().max())
            kept = exchange.uses_topology != "groups" or exchange.same_result
            expect(not kept or off < 1e-5, f"the mean over {size} ranks moved by {off:.3g}")


def exchange_checks(exchange: Exchange) -> dict[str, Callable[[], None]]:
    """The checks that apply to an exchange, by name."""
    compressor = coder_for(exchange)
    return {
        "traffic": lambda: traffic_is_declared(exchange, compressor),
        "results": lambda: results_are_declared(exchange, compressor),
    }

"""Bytes that are declared are those that in-process ranks count, for sizes that nothing divides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from relaxcomm.checks.round_trip import context
from relaxcomm.composition.exchange_cost import exchange_cost
from relaxcomm.network.operations import Label
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.topology import complete

SHAPES = {"a": (13, 7), "b": (11,), "c": (5, 3, 2), "d": (1,), "e": (17, 9)}
CODERS = {
    "bytegrad": primitives.minmax_uint8(block_size=16),
    "quantize": primitives.quantize(bits=3, block_size=10),
    "qsgd": primitives.qsgd(block_size=10),
    "terngrad": primitives.terngrad(),
    "sign": primitives.error_feedback(compressor=primitives.sign()),
    "top_k": primitives.error_feedback(compressor=primitives.top_k(density=0.1, scope="bucket")),
    "chunk_top_k": primitives.error_feedback(compressor=primitives.chunk_top_k(num_kept=2, chunk_size=20)),
    "power_sgd": primitives.error_feedback(compressor=primitives.power_sgd(matrix_rank=2)),
    "identity": primitives.identity(),
}
EXCHANGES = {
    "scatter_gather": primitives.scatter_gather(),
    "two-sided": primitives.scatter_gather(server_feedback=True),
    "vote": primitives.vote(),
    "all_gather": primitives.all_gather(),
    "all_reduce": primitives.all_reduce(),
}
PAIRS = [
    *((coder, "scatter_gather") for coder in CODERS if coder != "power_sgd"),
    ("sign", "two-sided"),
    ("sign", "vote"),
    ("chunk_top_k", "all_gather"),
    ("power_sgd", "all_reduce"),
]


def make_bucket():
    draw = torch.Generator().manual_seed(3)
    return Bucket(0, [Item(name, torch.randn(shape, generator=draw)) for name, shape in SHAPES.items()])


def sent(group, exchange, compressor):
    """What this rank's transport counts for one exchange."""
    transport, bucket = group.transport(), make_bucket()
    cx = replace(context(group.rank(), group.size()), layout=bucket.layout, bucket_part=(0,))
    state = dict(exchange.coding_slots(bucket, compressor, cx.membership))
    running = exchange.run(cx, bucket.gather(bucket.empty()), compressor, state)
    operation, stage = next(running), 0
    while True:
        received = transport.issue(operation, Label(0, "0", 0, stage)).wait()
        stage += 1
        try:
            operation = running.send(received)
        except StopIteration:
            transport.leave()
            return transport.counters.sent


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(("coder", "exchange"), PAIRS)
def test_declared_bytes_are_counted_bytes(coder, exchange, size):
    compressor, over = CODERS[coder], EXCHANGES[exchange]
    found = relaxcomm.simulate(lambda group: sent(group, over, compressor), size)
    declared = exchange_cost(over, compressor, make_bucket().layout, 4, size, complete()).sent_bytes
    assert sum(found) / size == pytest.approx(declared, abs=size)  # a ring hands on whole bytes

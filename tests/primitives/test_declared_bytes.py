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


def make_bucket(dtype=torch.float32):
    draw = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in SHAPES.items()}
    return Bucket(0, [Item(name, tensor) for name, tensor in tensors.items()])


def sent(group, exchange, compressor, dtype=torch.float32):
    """What this rank's transport counts for one exchange."""
    transport, bucket = group.transport(), make_bucket(dtype)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("coder", ["top_k", "gaussian_k", "dgc", "sign", "chunk_top_k"])
def test_a_mean_that_is_coded_again_is_sent_in_the_type_of_the_messages(coder, dtype):
    """The mean of 16-bit tensors has 32 bits, for the second residual, and its message 16."""
    sampled = primitives.dgc(density=0.1, scope="bucket")
    compressor = {
        **CODERS,
        "gaussian_k": primitives.error_feedback(
            compressor=primitives.gaussian_k(density=0.1, scope="bucket")
        ),
        "dgc": primitives.momentum_correction(compressor=sampled, momentum=0.9),
    }[coder]
    over = EXCHANGES["two-sided"]
    found = relaxcomm.simulate(lambda group: sent(group, over, compressor, dtype), 3)
    declared = exchange_cost(over, compressor, make_bucket(dtype).layout, 2, 3, complete()).sent_bytes
    assert sum(found) / 3 == pytest.approx(declared, abs=3)

"""Compressors in many forms, and with every exchange that takes them: what they declare is what is seen."""

import itertools
from dataclasses import replace

import pytest
import torch

import relaxcomm
from relaxcomm import topology
from relaxcomm.checks.compressors_hold import compressor_checks
from relaxcomm.checks.finding import attempt
from relaxcomm.checks.round_trip import context
from relaxcomm.checks.suite import LIMIT_SECONDS
from relaxcomm.config import registry
from relaxcomm.tensors.buckets import Bucket, Item

COMPRESSORS = [
    relaxcomm.identity(),
    relaxcomm.cast("bfloat16"),
    relaxcomm.cast("float64"),
    relaxcomm.top_k(density=0.1),
    relaxcomm.random_k(density=0.1),
    relaxcomm.random_k(density=0.1, scaled=True),
    relaxcomm.count_sketch(size=100),
    relaxcomm.gaussian_k(density=0.1),
    relaxcomm.dgc(density=0.1),
    relaxcomm.chain(compressors=(relaxcomm.top_k(density=0.1), relaxcomm.cast("float16"))),
    relaxcomm.chain(compressors=(relaxcomm.random_k(density=0.1), relaxcomm.cast("bfloat16"))),
    relaxcomm.chain(
        compressors=(
            relaxcomm.random_k(density=0.5),
            relaxcomm.gaussian_k(density=0.2),
            relaxcomm.cast("float16"),
        )
    ),
    relaxcomm.quantize(bits=3),
    relaxcomm.quantize(bits=4, block_size=100, rounding="stochastic", symmetric=True),
    relaxcomm.minmax_uint8(),
    relaxcomm.qsgd(),
    relaxcomm.terngrad(),
    relaxcomm.terngrad(clip=None),
    relaxcomm.sign(),
    relaxcomm.adaptive_top_k(),
    relaxcomm.switch(first=relaxcomm.identity(), then=relaxcomm.cast("float16"), steps=5),
    relaxcomm.chunk_top_k(num_kept=7, chunk_size=100),
    relaxcomm.dct_top_k(num_kept=5, chunk_size=24),
    relaxcomm.chain(compressors=(relaxcomm.dct_top_k(num_kept=5), relaxcomm.cast("float16"))),
    relaxcomm.ef21(compressor=relaxcomm.top_k(density=0.1)),
    relaxcomm.power_sgd(matrix_rank=2),
    relaxcomm.error_feedback(compressor=relaxcomm.power_sgd(matrix_rank=2)),
    relaxcomm.error_feedback(compressor=relaxcomm.sign()),
    relaxcomm.chain(compressors=(relaxcomm.top_k(density=0.1), relaxcomm.quantize(bits=4, block_size=32))),
    relaxcomm.error_feedback(compressor=relaxcomm.top_k(density=0.1)),
    relaxcomm.momentum_correction(compressor=relaxcomm.top_k(density=0.1)),
]
EXCHANGES = [
    relaxcomm.all_reduce(),
    relaxcomm.all_gather(),
    relaxcomm.scatter_gather(),
    relaxcomm.vote(),
    relaxcomm.scatter_gather(server_feedback=True),
    relaxcomm.gossip(topology=topology.ring()),
    relaxcomm.gossip(topology=topology.one_peer_exponential()),
    relaxcomm.choco_gossip(gamma=0.5, topology=topology.ring()),
    relaxcomm.dcd_gossip(topology=topology.ring()),
    relaxcomm.push_sum(topology=topology.one_peer_exponential()),
    relaxcomm.hierarchical_all_reduce(),
    relaxcomm.group_all_reduce(),
]


def test_every_bundled_compressor_is_here():
    found = registry.primitives()["compressor"].items()  # a test's plug-ins may be among them
    bundled = {name for name, made in found if made.__module__.startswith("relaxcomm.")}
    assert {type(one).__name__ for one in COMPRESSORS} == bundled


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_compressor(compressor):
    checks = compressor_checks(compressor)
    found = [attempt(repr(compressor), name, run, LIMIT_SECONDS) for name, run in checks.items()]
    assert [str(finding) for finding in found if finding.fault] == []


def fits(exchange, compressor):
    """Whether the legality check takes the two together."""
    several = compressor.rounds > 1 or compressor.builds_on_results
    return compressor.kinds <= exchange.accepts and (exchange.several_rounds or not several)


@pytest.mark.parametrize(
    ("exchange", "compressor"),
    [pair for pair in itertools.product(EXCHANGES, COMPRESSORS) if fits(*pair)],
    ids=repr,
)
@pytest.mark.parametrize("size", [2, 3])
def test_exchanges_send_what_they_declare(exchange, compressor, size):
    groups = topology.hierarchical(sizes=(1,) * (size - 2) + (2,))

    def rank(group):
        transport, tensor = group.transport(), torch.randn(600)
        cx = replace(context(group.rank(), size), topology=groups)
        bucket = Bucket(0, [Item("tensor", tensor)])
        state = dict(exchange.coding_slots(bucket, compressor, cx.membership))
        running = exchange.run(cx, tensor, compressor, state)
        operation, operations = next(running), 0
        try:
            while True:
                operations += 1
                label = relaxcomm.network.operations.Label(0, "0", 0, operations)
                operation = running.send(transport.issue(operation, label).wait())
        except StopIteration:
            return operations, transport.counters.sent

    found = relaxcomm.simulate(rank, size)
    assert {operations for operations, _ in found} == {compressor.rounds * exchange.operations}
    coded_apart = size if isinstance(exchange, relaxcomm.scatter_gather | relaxcomm.vote) else 1
    message_bytes = coded_apart * compressor.message_bytes(600 // coded_apart, 4)
    declared = exchange.bytes_sent(message_bytes, size, groups)
    assert sum(sent for _, sent in found) / size == pytest.approx(declared, abs=1)

"""Compressors in many forms, and with every exchange that takes them: what they declare is what is seen."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

import relaxcomm
from relaxcomm import primitives, topology
from relaxcomm.checks.compressor_facts_hold import facts_hold
from relaxcomm.checks.exchange_trials import takes
from relaxcomm.checks.finding import attempt
from relaxcomm.checks.round_trip import context
from relaxcomm.checks.suite import LIMIT_SECONDS
from relaxcomm.config import registry
from relaxcomm.plugin import Bucket, one_tensor
from relaxcomm.tensors.items import Item

COMPRESSORS = [
    primitives.identity(),
    primitives.cast("bfloat16"),
    primitives.cast("float32"),  # on its way the values themselves, unless they are copied
    primitives.top_k(density=0.1),
    primitives.random_k(density=0.1),
    primitives.random_k(density=0.1, scaled=True),
    primitives.count_sketch(size=100),
    primitives.gaussian_k(density=0.1),
    primitives.dgc(density=0.1),
    primitives.chain(compressors=(primitives.top_k(density=0.1), primitives.cast("float16"))),
    primitives.chain(compressors=(primitives.random_k(density=0.1), primitives.cast("bfloat16"))),
    primitives.chain(
        compressors=(
            primitives.random_k(density=0.5),
            primitives.gaussian_k(density=0.2),
            primitives.cast("float16"),
        )
    ),
    primitives.quantize(bits=3),
    primitives.quantize(bits=4, block_size=100, rounding="stochastic", symmetric=True),
    primitives.minmax_uint8(),
    primitives.qsgd(),
    primitives.terngrad(),
    primitives.terngrad(clip=None),
    primitives.clip_norm(max_norm=5.0),
    primitives.chain(compressors=(primitives.clip_norm(max_norm=5.0), primitives.quantize(bits=8))),
    primitives.error_feedback(compressor=primitives.clip_norm(max_norm=5.0)),
    primitives.sign(),
    primitives.adaptive_top_k(),
    primitives.switch(first=primitives.identity(), then=primitives.cast("float16"), steps=5),
    primitives.chunk_top_k(num_kept=7, chunk_size=100),
    primitives.dct_top_k(num_kept=5, chunk_size=24),
    primitives.chain(compressors=(primitives.dct_top_k(num_kept=5), primitives.cast("float16"))),
    primitives.ef21(compressor=primitives.top_k(density=0.1)),
    primitives.power_sgd(matrix_rank=2),
    primitives.error_feedback(compressor=primitives.power_sgd(matrix_rank=2)),
    primitives.error_feedback(compressor=primitives.sign()),
    primitives.error_feedback(compressor=primitives.qsgd()),
    primitives.error_feedback(compressor=primitives.cast("bfloat16"), decay=0.5),
    primitives.chain(compressors=(primitives.top_k(density=0.1), primitives.quantize(bits=4, block_size=32))),
    primitives.error_feedback(compressor=primitives.top_k(density=0.1)),
    primitives.momentum_correction(compressor=primitives.top_k(density=0.1)),
]
EXCHANGES = [
    primitives.all_reduce(),
    primitives.all_gather(),
    primitives.scatter_gather(),
    primitives.vote(),
    primitives.scatter_gather(server_feedback=True),
    primitives.gossip(topology=topology.ring()),
    primitives.gossip(topology=topology.one_peer_exponential()),
    primitives.choco_gossip(gamma=0.5, topology=topology.ring()),
    primitives.dcd_gossip(topology=topology.ring()),
    primitives.push_sum(topology=topology.one_peer_exponential()),
    primitives.hierarchical_all_reduce(),
    primitives.group_all_reduce(),
    primitives.coordinate_median(),
    primitives.trimmed_mean(trim=1),
]


def test_every_bundled_compressor_is_here():
    found = registry.primitives()["compressor"].items()  # a test's plug-ins may be among them
    bundled = {name for name, made in found if made.__module__.startswith("relaxcomm.")}
    assert {type(one).__name__ for one in COMPRESSORS} == bundled


def faults(compressor, draws=300):
    checks = facts_hold(draws).items()
    found = [attempt(repr(compressor), name, partial(run, compressor), LIMIT_SECONDS) for name, run in checks]
    return [str(finding) for finding in found if finding.fault]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_compressor(compressor):
    assert faults(compressor) == []


def chains():
    """Every legal chain of two."""
    single = [one for one in COMPRESSORS if not isinstance(one, primitives.chain)]
    for pair in itertools.product(single, repeat=2):
        try:
            yield primitives.chain(compressors=pair)
        except relaxcomm.CompositionError:
            continue


@pytest.mark.every_other("part", of=8)
@pytest.mark.parametrize("part", range(8))
def test_chains_of_two(part):
    """One in eight, in which each coder is first in some and second in others that it can be in."""
    every = [*chains()]
    tried = every[part::8]
    for place in (0, 1):
        assert {one.compressors[place] for one in tried} == {one.compressors[place] for one in every}
    assert [fault for one in tried for fault in faults(one, draws=16)] == []


def fits(exchange, compressor):
    """Whether the legality check takes the two together."""
    several = compressor.facts.rounds > 1 or compressor.facts.follows_results
    return compressor.facts.kinds <= exchange.facts.accepts and (exchange.facts.several_rounds or not several)


@pytest.mark.parametrize(
    ("exchange", "compressor", "size"),
    [
        (exchange, compressor, size)
        for exchange, compressor, size in itertools.product(EXCHANGES, COMPRESSORS, (2, 3))
        if fits(exchange, compressor) and takes(exchange, size)
    ],
    ids=repr,
)
def test_exchanges_send_what_they_declare(exchange, compressor, size):
    groups = topology.hierarchical(sizes=(1,) * (size - 2) + (2,))

    def rank(group):
        transport, tensor = group.transport(), torch.randn(600)
        cx = replace(context(group.rank(), size), topology=groups)
        bucket = Bucket(0, [Item("tensor", tensor)])
        state = dict(exchange.coding_slots(bucket, compressor, cx.membership))
        running = exchange.run(cx, tensor, compressor, state)
        operation, kinds = next(running), []
        try:
            while True:
                kinds.append(type(operation))
                label = relaxcomm.network.operations.Label(0, "0", 0, len(kinds))
                operation = running.send(transport.issue(operation, label).wait())
        except StopIteration:
            return kinds, transport.counters.sent

    found = relaxcomm.simulate(rank, size)
    stages = exchange.stages(size, groups)
    assert [kinds for kinds, _ in found] == [[one.kind for one in stages] * compressor.facts.rounds] * size
    message_bytes = exchange.coded_bytes(compressor, one_tensor(600), 4, size)
    declared = message_bytes * sum(one.sent(size, exchange.topology_override() or groups) for one in stages)
    assert sum(sent for _, sent in found) / size == pytest.approx(declared, abs=1)

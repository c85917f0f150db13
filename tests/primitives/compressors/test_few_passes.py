"""What saves passes over memory changes nothing: each is held against the plain way."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm.kernels.dispatch import implementation, uses_numba
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import (
    all_gather,
    chain,
    chunk_top_k,
    deltas,
    dgc,
    ef21,
    error_feedback,
    every,
    gaussian_k,
    gossip,
    identity,
    quantize,
    scatter_gather,
    top_k,
)
from relaxcomm.primitives.compressors import threshold_search
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.primitives.compressors.sparsifier import Sparsifier
from relaxcomm.primitives.compressors.threshold_search import Magnitudes
from relaxcomm.primitives.compressors.weighted_sum import sum_dense, sum_sparse
from relaxcomm.tensors.finiteness import is_finite, is_known_finite
from relaxcomm.tensors.messages import Dense, Sparse
from relaxcomm.topology import ring
from tests.kernels.host_kernels import needs_numba, on_host
from tests.models import take_step
from tests.primitives.compressors.test_sparsifiers import CHOOSING, bucket_of, context

NUMEL = 600_001  # three chunks of a pass, two ranges of a sum
SHAPES = {
    "normal": lambda draw: torch.randn(NUMEL, generator=draw),
    "heavy tails": lambda draw: torch.randn(NUMEL, generator=draw) ** 5,
    "few levels": lambda draw: torch.randn(NUMEL, generator=draw).mul(2).round(),
    "few that are not 0": lambda draw: (
        torch.randn(NUMEL, generator=draw) * (torch.arange(NUMEL) % 50_000 == 7)
    ),
    "equal": lambda draw: torch.full((NUMEL,), -0.5),
    "sample sees nothing": lambda draw: (torch.arange(NUMEL) % 60 == 1).float() * torch.arange(NUMEL),
}


def exchanged(compressor, tensors, weights=(1.0,), *, reuse=False):
    """Results and residuals of one worker, tensor by tensor; its message comes back with each weight."""
    state, found = dict(compressor.init(bucket_of(tensors[0]))), []
    for step, tensor in enumerate(tensors):
        given = tensor.clone()
        cx = replace(context(step), out=given if reuse else None)
        coding = compressor.encode_decode(cx, given, state, keep_sent=False)
        message = next(coding)
        with pytest.raises(StopIteration) as stop:
            coding.send([(weight, message) for weight in weights])
        result, _ = stop.value.value
        assert reuse == (result.data_ptr() == given.data_ptr())
        found += [result.clone(), *(state[name].clone() for name in state if not name.startswith("_"))]
    return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("density", [0.0005, 0.02])
def test_top_k_finds_the_largest_of_many(name, density):
    tensor = SHAPES[name](torch.Generator().manual_seed(0))
    (result,) = exchanged(top_k(density=density), [tensor])
    k = int(density * NUMEL)
    expected = torch.topk(tensor.abs(), k).values
    found = result[result != 0].abs().sort(descending=True).values
    assert torch.equal(found, expected[expected > 0])
    assert torch.equal(result[result != 0], tensor[result != 0])


SMALL = {
    "normal": torch.randn(3000, generator=torch.Generator().manual_seed(0)),
    "equal": torch.randn(3000, generator=torch.Generator().manual_seed(0)).mul(2).round(),
    "zeros": torch.randn(3000, generator=torch.Generator().manual_seed(0)) * (torch.arange(3000) % 100 == 7),
    "nan": torch.randn(3000, generator=torch.Generator().manual_seed(0)).index_fill_(
        0, torch.tensor([70]), math.nan
    ),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("k", [1, 29, 31, 2999, 3000])
@pytest.mark.parametrize("factor", [None, 1.0, 0.9])
def test_the_largest_of_few_are_those_that_a_search_finds(name, k, factor):
    def sizes():
        terms = None if factor is None else (SMALL[name], SMALL["normal"].flip(0), factor)
        return Magnitudes(SMALL[name].clone(), terms)

    few, searched = sizes(), sizes()
    assert torch.equal(few.largest(k), searched.more_than(k)[1].largest(k))
    assert few.is_finite() == searched.is_finite() == (name != "nan")
    torch.testing.assert_close(few.tensor, searched.tensor, rtol=0, atol=0, equal_nan=True)


def test_the_largest_of_few_are_not_searched_for(monkeypatch):
    """Nor are they looked at for NaN: a search is many small operations."""
    monkeypatch.delattr(Magnitudes, "more_than")
    monkeypatch.delattr(threshold_search, "is_finite")
    sizes = Magnitudes(SMALL["normal"])
    assert torch.equal(sizes.largest(9), torch.topk(SMALL["normal"].abs(), 9).indices.sort().values)
    assert sizes.is_finite()


@pytest.mark.parametrize("compressor", CHOOSING, ids=repr)
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_feedback_in_the_pass_that_chooses_is_feedback(compressor, decay, monkeypatch):
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn(NUMEL, generator=draw) for _ in range(3)]
    wrapped = error_feedback(compressor=compressor, decay=decay)
    at_once = exchanged(wrapped, tensors)
    monkeypatch.setattr(Sparsifier, "takes_feedback", lambda self, tensor: False)
    monkeypatch.setattr(gaussian_k, "takes_feedback", lambda self, tensor: False)
    for one, other in zip(at_once, exchanged(wrapped, tensors), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "compressor",
    [
        top_k(density=0.01),
        error_feedback(compressor=dgc(density=0.01)),
        error_feedback(compressor=chunk_top_k(num_kept=1, chunk_size=16)),
        error_feedback(
            compressor=chain(compressors=(chunk_top_k(num_kept=1, chunk_size=16), quantize(bits=4)))
        ),
        ef21(compressor=top_k(density=0.01)),
    ],
    ids=repr,
)
def test_results_may_take_the_memory_of_what_was_encoded(compressor):
    tensors = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(step)) for step in range(3)]
    apart = exchanged(compressor, tensors, weights=(0.25, 0.5))
    for one, other in zip(
        apart, exchanged(compressor, tensors, weights=(0.25, 0.5), reuse=True), strict=True
    ):
        assert torch.equal(one, other)


@needs_numba
@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("inner", [1, 2])
def test_kernels_in_numba_change_nothing(inner, decay):
    """Neither results nor residuals, whether the kernel makes the sum or it is made before."""
    chosen = chunk_top_k(num_kept=inner, chunk_size=16)
    compressor = error_feedback(compressor=chain(compressors=(chosen, quantize(bits=4))), decay=decay)
    tensors = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(step)) for step in range(3)]
    found = on_host(exchanged, compressor, tensors, (0.25, 1 / 3))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@needs_numba
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_floats_are_corrected_before_they_are_rounded(dtype):
    """What is sent is rounded, so that no kernel may make the sum in its place."""
    compressor = error_feedback(compressor=chunk_top_k(num_kept=1, chunk_size=16))
    tensors = [
        torch.randn(NUMEL, generator=torch.Generator().manual_seed(step)).to(dtype) for step in range(3)
    ]
    found = on_host(exchanged, compressor, tensors)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    residual = found[0][-1]
    sent = sum(result.double() for result in found[0][::2])
    torch.testing.assert_close(
        sent + residual.double(), sum(one.double() for one in tensors), rtol=0, atol=1e-5
    )


def trained(algorithm, name, *, leaves, monkeypatch):
    """Parameters of three workers after some rounds, and how often what moved was read in its own pass."""
    reads = []
    read = deltas.read
    monkeypatch.setattr(deltas, "read", lambda *arguments: reads.append(1) or read(*arguments))
    if not leaves:
        for exchange in (all_gather, scatter_gather):
            monkeypatch.setattr(exchange, "takes_difference", lambda *arguments: False)

    def run(group):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 20, 3), nn.Flatten(), nn.Linear(80, 30), nn.Linear(30, 2))
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(group.rank())
        config = {"algorithm": algorithm, "bucket_bytes": 8192}  # two
        with implementation(name), relaxcomm.attach(model, optimizer, config, process_group=group):
            for _ in range(7):
                take_step(model(torch.randn(4, 3, 4, 4, generator=draw)).square().sum(), optimizer)
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    found = torch.stack(relaxcomm.simulate(run, 3))
    monkeypatch.undo()
    return found, len(reads)


FEW = error_feedback(compressor=chain(compressors=(chunk_top_k(num_kept=1, chunk_size=16), quantize(bits=4))))
BITS = quantize(bits=8, block_size=64)


@pytest.mark.every_other("compressor", "delay")
@needs_numba
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize(
    ("compressor", "exchange"),
    [
        (FEW, all_gather()),
        (BITS, scatter_gather()),
        (error_feedback(compressor=BITS), all_gather()),
        (error_feedback(compressor=BITS), scatter_gather(server_feedback=True)),
        (error_feedback(compressor=BITS, decay=0.5), scatter_gather()),
    ],
    ids=repr,
)
def test_what_moved_is_made_where_it_is_looked_at_first(compressor, exchange, delay, monkeypatch):
    """Where the compressor's kernel does so, with the same result to the last bit."""
    rule = relaxcomm.Rule(
        trigger=every(steps=2),
        payload=deltas(),
        compressor=compressor,
        exchange=exchange,
        delay=delay,
    )
    algorithm = relaxcomm.Algorithm(rules=(rule,))
    left, none = trained(algorithm, "numba", leaves=True, monkeypatch=monkeypatch)
    read, some = trained(algorithm, "numba", leaves=False, monkeypatch=monkeypatch)
    eager, all_of_them = trained(algorithm, "eager", leaves=True, monkeypatch=monkeypatch)
    assert none == 0
    assert some == all_of_them > 0
    assert torch.equal(left, read)
    assert torch.equal(left, eager)


@needs_numba
@pytest.mark.parametrize("feedback", [False, True])
def test_parts_that_are_too_small_for_a_kernel_are_made_though_the_whole_is_not(feedback, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    compressor = error_feedback(compressor=BITS) if feedback else BITS
    rule = relaxcomm.Rule(payload=deltas(), compressor=compressor, exchange=scatter_gather())

    def run(group):
        torch.manual_seed(0)
        model = nn.Linear(1200, 60)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(group.rank())
        with relaxcomm.attach(model, optimizer, relaxcomm.Algorithm((rule,)), process_group=group):
            for _ in range(2):
                take_step(model(torch.randn(4, 1200, generator=draw)).square().sum(), optimizer)
        return model.weight.detach()

    by_itself = relaxcomm.simulate(run, 3)
    with implementation("eager"):
        expected = relaxcomm.simulate(run, 3)
    assert uses_numba(torch.empty(72_060)) > uses_numba(torch.empty(24_020))
    assert all(torch.equal(one, other) for one, other in zip(by_itself, expected, strict=True))


def test_what_is_large_or_not_finite_is_looked_at_though_values_are_few():
    for value, expected in ((1.0, True), (1e30, True), (3e38, False), (math.nan, False), (math.inf, False)):
        message = Sparse(torch.full((9,), value), torch.zeros(9).int(), torch.tensor([9]).int())
        total = sum_sparse([(1.0, message), (1.0, message)], torch.zeros(100))
        assert is_finite(total) == expected == bool(torch.isfinite(total).all())


@pytest.mark.parametrize("coder", [quantize(bits=4, block_size=16), quantize(bits=4, symmetric=True)])
def test_levels_that_are_large_or_not_finite_are_looked_at(coder):
    for value, expected in ((1.0, True), (1e30, True), (3e38, False), (math.nan, False), (math.inf, False)):
        tensor = torch.full((NUMEL,), -1.0).index_fill(0, torch.tensor([70]), value)
        cx = replace(context(0), out=torch.empty(NUMEL))
        coding = coder.encode_decode(cx, tensor, {}, keep_sent=False)
        message = next(coding)
        total, _ = finish(coding, [(1.0, message), (1.0, message)])
        assert total.data_ptr() == cx.out.data_ptr()
        assert is_known_finite(total) == expected
        assert is_finite(total) == expected == bool(torch.isfinite(total).all())


def test_sums_by_ranges_take_any_order_and_count_twice_what_comes_twice():
    draw = torch.Generator().manual_seed(2)
    indices = torch.randint(NUMEL, (20_000,), generator=draw).int()
    indices[:100] = indices[100:200]
    values, used = torch.randn(20_000, generator=draw), 19_000
    message = Sparse(values, indices, torch.tensor([used], dtype=torch.int32))
    assert len(list(message.ranges(torch.empty(NUMEL)))) == 2
    total = torch.ones(NUMEL)
    message.add_to(total, -0.5)
    expected = torch.ones(NUMEL, dtype=torch.float64)
    expected.index_add_(0, indices[:used], values[:used].double(), alpha=-0.5)
    torch.testing.assert_close(total.double(), expected, rtol=0, atol=1e-6)


def test_a_mixture_takes_the_memory_of_what_was_sent_unless_it_is_still_read():
    sent, came = torch.tensor([1.0, 3.0]), torch.tensor([5.0, 9.0])
    again = sum_dense([(0.25, Dense(sent)), (0.5, Dense(sent))], out=sent)
    assert (again.tolist(), sent.tolist()) == ([0.75, 2.25], [1.0, 3.0])
    found = sum_dense([(0.25, Dense(sent)), (0.5, Dense(came))], out=sent)
    assert found.data_ptr() == sent.data_ptr()
    assert (found.tolist(), came.tolist()) == ([2.75, 5.25], [5.0, 9.0])
    short = torch.tensor([1.0, 3.0], dtype=torch.bfloat16)
    assert sum_dense([(0.5, Dense(short))], out=short).dtype == torch.float32


def test_gossip_needs_no_memory_for_its_result():
    exchange, tensor = gossip(topology=ring()), torch.tensor([6.0, 3.0])
    cx = replace(context(0), membership=Membership(0, 3), out=None)
    running = exchange.run(cx, tensor, identity(), {})
    came = {rank: one.view(torch.float32) for rank, one in next(running).receives.items()}
    for one in came.values():
        one.fill_(3.0)
    with pytest.raises(StopIteration) as stop:
        running.send({rank: one.view(torch.uint8) for rank, one in came.items()})
    assert stop.value.value.data_ptr() == tensor.data_ptr()
    assert tensor.tolist() == [4.0, 3.0]


def test_the_mean_of_estimates_takes_the_memory_of_what_was_sent():
    compressor, tensor = ef21(compressor=top_k(density=0.5)), torch.tensor([6.0, 3.0])
    state = dict(compressor.init(bucket_of(tensor)))
    coding = compressor.encode_decode(replace(context(0), out=tensor), tensor, state, keep_sent=False)
    result, _ = finish(coding, ((0.5, next(coding)),))
    assert result.data_ptr() == tensor.data_ptr() != state["mean_estimate"].data_ptr()
    assert result.tolist() == state["mean_estimate"].tolist() == [3.0, 0.0]


def test_the_mean_of_estimates_is_lent_to_nobody():
    compressor, tensor = ef21(compressor=top_k(density=0.5)), torch.tensor([6.0, 3.0])
    state = dict(compressor.init(bucket_of(tensor)))
    coding = compressor.encode_decode(replace(context(0), out=None), tensor, state, keep_sent=False)
    result, _ = finish(coding, ((0.5, next(coding)),))
    result.zero_()  # as a payload's finalize may
    assert state["mean_estimate"].tolist() == [3.0, 0.0]


def test_what_scatter_gather_has_received_is_gone_when_means_are_on_their_way():
    cx = replace(context(0), membership=Membership(0, 2), out=None)
    running = scatter_gather().run(cx, torch.tensor([6.0, 3.0]), identity(), {})
    came = np.zeros((2, 4), dtype=np.uint8)
    is_there = weakref.ref(came)
    assert next(running).tensor.shape == came.shape
    running.send(torch.from_numpy(came))
    del came
    assert is_there() is None
    running.close()

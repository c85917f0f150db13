"""PowerSGD against NumPy: 3 ranks, 2 buckets; and matrices of awkward scales."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import power_sgd
from relaxcomm.roles import Context
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout
from tests import references
from tests.algorithms.test_low_precision_algorithms import BUCKET_BYTES, layout
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import assert_histories_agree, in_process, simulated_workers, train
from tests.models import CASES

STEPS = 32


class Reference:
    """PowerSGD with error feedback on the matrices of one bucket."""

    def __init__(self, names, rank, index):
        shapes = {name: tuple(p.shape) for name, p in CASES["toy"].model().named_parameters()}
        self.shapes = [shapes[name] for name in names]
        self.ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)])
        ranks = [min(rank, *shape) if len(shape) == 2 else 0 for shape in self.shapes]
        sizes = [
            shape[1] * r if self.small(shape, r) else 0 for shape, r in zip(self.shapes, ranks, strict=True)
        ]
        drawn = torch.randn(
            sum(sizes), generator=torch.Generator().manual_seed(index), dtype=torch.float64
        ).numpy()
        cuts = np.cumsum([0, *sizes])
        self.right = [
            drawn[a:b].reshape(shape[1], r) if b > a else None
            for (a, b), shape, r in zip(itertools.pairwise(cuts), self.shapes, ranks, strict=True)
        ]
        self.kept = 0.0

    @staticmethod
    def small(shape, rank):
        return rank > 0 and rank * sum(shape) < np.prod(shape)

    def __call__(self, rows):
        wanted = rows + self.kept
        sent, result = wanted.copy(), wanted.mean(axis=0)
        for tensor, (a, b) in enumerate(itertools.pairwise(self.ends)):
            if self.right[tensor] is None:
                continue
            matrices = wanted[:, a:b].reshape(len(rows), *self.shapes[tensor])
            left, _ = np.linalg.qr(np.mean([m @ self.right[tensor] for m in matrices], axis=0))
            rights = [m.T @ left for m in matrices]
            sent[:, a:b] = [(left @ q.T).ravel() for q in rights]
            self.right[tensor] = np.mean(rights, axis=0)
            result[a:b] = (left @ self.right[tensor].T).ravel()
        self.kept = wanted - sent
        return result


@pytest.mark.every_other("matrix_rank", "bucket_bytes", "optimizer")
@pytest.mark.parametrize("matrix_rank", [1, 2])
@pytest.mark.parametrize("bucket_bytes", [64, BUCKET_BYTES])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_powersgd(matrix_rank, bucket_bytes, optimizer):
    """Buckets of 64 bytes hold one tensor each, some of them only vectors: their second round is empty."""
    config = {"algorithm": {"name": "powersgd", "matrix_rank": matrix_rank}, "bucket_bytes": bucket_bytes}
    coders = [Reference(names, matrix_rank, i) for i, names in enumerate(in_process(layout, 3, config)[0])]
    assert len(coders) >= 2
    expected = references.coded_sgd(
        simulated_workers(3, optimizer),
        STEPS,
        lambda rows, step, bucket: coders[bucket](rows),
        in_process(bucket_places, 3, config)[0],
    )
    assert_histories_agree(in_process(train, 3, config, STEPS, optimizer), expected, tolerance=1e-7)


class Coder:
    """A power_sgd with its state, fed matrices of one worker."""

    def __init__(self, shapes, matrix_rank=1, dtype=torch.float32):
        items = [Item(str(i), torch.zeros(shape, dtype=dtype)) for i, shape in enumerate(shapes)]
        self.bucket, self.compressor = Bucket(0, items), power_sgd(matrix_rank=matrix_rank)
        self.state = dict(self.compressor.init(self.bucket))

    def __call__(self, *tensors):
        layout = Layout(self.bucket.names, tuple(t.shape for t in tensors))
        cx = Context(step=0, start=0, membership=Membership(0, 1), learning_rate=lambda b: 0.1, layout=layout)
        flat = torch.cat([t.reshape(-1) for t in tensors])
        coding = self.compressor.encode_decode(cx, flat, self.state, keep_sent=True)
        message = next(coding)
        try:
            while True:
                message = coding.send([(1.0, message)])
        except StopIteration as stop:
            result, own = stop.value
        torch.testing.assert_close(own, result, rtol=0, atol=0, equal_nan=True)
        return [
            part.view(t.shape)
            for part, t in zip(result.split([t.numel() for t in tensors]), tensors, strict=True)
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scales", [(1e-3, 1e3), (1e-7, 1.0), (0.0, 1.0)])
def test_each_matrix_is_normalised_on_its_own(scales, dtype):
    """Matrices of rank one come back whole, whatever stands beside them."""
    draw = torch.Generator().manual_seed(0)
    given = [
        (scale * torch.randn(9, 1, generator=draw) @ torch.randn(1, 13, generator=draw)).to(dtype)
        for scale in scales
    ]
    vector = torch.randn(5).to(dtype)
    *found, same = Coder([(9, 13), (9, 13), (5,)], dtype=dtype)(*given, vector)
    assert torch.equal(same, vector)
    tolerance = 8 * torch.finfo(dtype).eps + 1e-6
    for matrix, expected in zip(found, given, strict=True):
        off = (matrix - expected).double().norm()
        assert off <= tolerance * expected.double().norm() + (1e-6 if dtype == torch.float16 else 0)


@pytest.mark.parametrize("num_unused", [0, 1, 2])
@pytest.mark.parametrize("in_some", [False, True])
def test_a_step_of_zeros_is_not_the_end(num_unused, in_some):
    """Also where the first rows, such as that for padding, never have a gradient; or of all but one entry."""
    draw = torch.Generator().manual_seed(0)
    coder = Coder([(20, 30)], matrix_rank=2)
    matrix = torch.randn(20, 2, generator=draw) @ torch.randn(2, 30, generator=draw)
    matrix[:num_unused] = 0
    first = torch.zeros(20, 30)
    first[-1, -1] = float(in_some)  # of rank 1, so that one column of Q is 0
    torch.testing.assert_close(coder(first)[0], first)
    for _ in range(3):
        found = coder(matrix)[0]
    torch.testing.assert_close(found, matrix, rtol=1e-4, atol=1e-4)


def test_warm_starts_find_the_best_approximation():
    matrix = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    coder = Coder([(40, 30)], matrix_rank=3)
    lost = [float((coder(matrix)[0] - matrix).norm()) for _ in range(200)]
    best = torch.linalg.svdvals(matrix)[3:].norm()
    assert lost[0] > 1.02 * best
    assert lost[-1] == pytest.approx(float(best), rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(bad):
    matrix = torch.randn(20, 30)
    matrix[3, 4] = bad
    assert not torch.isfinite(Coder([(20, 30)])(matrix)[0]).all()


def test_it_needs_a_result_that_all_share():
    with pytest.raises(relaxcomm.CompositionError, match="all_reduce"):
        relaxcomm.Rule(
            payload=primitives.parameters(), compressor=power_sgd(matrix_rank=1), exchange=primitives.gossip()
        )
    with pytest.raises(relaxcomm.CompositionError, match="all_reduce"):
        relaxcomm.Rule(
            payload=primitives.gradients(),
            compressor=power_sgd(matrix_rank=1),
            exchange=primitives.scatter_gather(),
        )


def test_a_column_major_matrix_is_one():
    """A gradient of rank 1 is what P and Q of rank 1 can hold."""
    left, right = torch.arange(1.0, 13.0), torch.arange(-4.0, 4.0)

    def run(group):
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.zeros(8, 12).t())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with relaxcomm.attach(
            model, optimizer, {"algorithm": {"name": "powersgd", "matrix_rank": 1}}, process_group=group
        ):
            (left @ model.weight @ right).backward()
            return model.weight.grad

    for gradient in relaxcomm.simulate(run, 3):
        torch.testing.assert_close(gradient, torch.outer(left, right))

"""DeMo and SparseLoCo against NumPy: 3 ranks, several buckets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from tests import references
from tests.algorithms.test_low_precision_algorithms import BUCKET_BYTES, layout, whole_levels
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import (
    assert_histories_agree,
    engine_state,
    in_process,
    simulated_workers,
    train,
    values,
)
from tests.models import CASES, make_optimizer, trainable
from tests.primitives.compressors.test_chunk_top_k import dct, top

STEPS = 32
KEPT, CHUNK, DECAY = 3, 5, 0.9


def shapes_of(names):
    shapes = {name: tuple(p.shape) for name, p in CASES["toy"].model().named_parameters()}
    return [shapes[name] for name in names]


def by_tensor(flat, shapes, code):
    """`code` of each tensor that lies in a vector."""
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    parts = [code(flat[a:b].reshape(s)) for (a, b), s in zip(itertools.pairwise(ends), shapes, strict=True)]
    return np.concatenate([part.ravel() for part in parts])


def transformed(x):
    """The largest coefficients of each block, transformed back."""
    matrix, result = x.reshape(len(x) if x.ndim > 1 else 1, -1), np.zeros(x.size)
    result = result.reshape(matrix.shape)
    for row, column in itertools.product(*(range(0, size, CHUNK) for size in matrix.shape)):
        block = matrix[row : row + CHUNK, column : column + CHUNK]
        once, left = dct(block, 0)
        coefficients, right = dct(once, 1)
        result[row : row + CHUNK, column : column + CHUNK] = left.T @ top(coefficients, KEPT) @ right
    return result


@pytest.mark.parametrize("bucket_bytes", [64, BUCKET_BYTES])
def test_demo(bucket_bytes):
    """Blocks are those of tensors, whatever the size of buckets."""
    algorithm = {"name": "demo", "decay": DECAY, "num_kept": KEPT, "chunk_size": CHUNK}
    config = {"algorithm": algorithm, "bucket_bytes": bucket_bytes}
    shapes = [shapes_of(names) for names in in_process(layout, 3, config)[0]]
    momenta = [0.0] * len(shapes)

    def combine(rows, step, bucket):
        momenta[bucket] = DECAY * momenta[bucket] + rows
        sent = np.stack([by_tensor(row, shapes[bucket], transformed) for row in momenta[bucket]])
        momenta[bucket] = momenta[bucket] - sent
        return np.sign(sent.sum(axis=0))

    expected = references.coded_sgd(
        simulated_workers(3, "plain"), STEPS, combine, in_process(bucket_places, 3, config)[0]
    )
    assert_histories_agree(in_process(train, 3, config, STEPS, "plain"), expected)


def coarse(x):
    """The 4 largest of each 16 entries."""
    return np.concatenate([top(x.ravel()[a : a + 16], 4) for a in range(0, x.size, 16)])


def sparseloco(workers, steps, period, places, shapes, bits, decay, lr):
    """e <- decay e + x0 - x; q = levels of the largest of e; x0 <- x0 - lr mean q."""
    history, anchor = [], workers.parameters[0]
    kept = np.zeros_like(workers.parameters)
    for step in range(steps):
        workers.update(workers.gradients(step))
        if (step + 1) % period == 0:
            kept = decay * kept + anchor - workers.parameters
            sent = np.zeros_like(kept)
            for row, out in zip(kept, sent, strict=True):
                for indices, shape in zip(places, shapes, strict=True):
                    chosen = by_tensor(row[indices], shape, coarse)
                    where = np.flatnonzero(chosen)
                    # They are fewer than a block of 1024.
                    chosen[where] = whole_levels(chosen[where], bits=bits)
                    out[indices] = chosen
            kept = kept - sent
            anchor = anchor - lr * sent.mean(axis=0)
            workers.parameters = anchor
        history.append(workers.parameters)
    return references.finish(workers, history)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_sparseloco(optimizer):
    algorithm = {"name": "sparseloco", "steps": 4, "num_kept": 4, "chunk_size": 16, "bits": 3, "lr": 0.8}
    config = {"algorithm": algorithm, "bucket_bytes": BUCKET_BYTES}
    names, places = in_process(step_layout, 3, config)[0]
    assert len(names) >= 2
    shapes = [shapes_of(one) for one in names]
    expected = sparseloco(simulated_workers(3, optimizer), STEPS, 4, places, shapes, 3, 0.95, 0.8)
    assert_histories_agree(in_process(train, 3, config, STEPS, optimizer), expected)


def step_layout(world, config):
    """Names in each bucket, and where their entries lie among all parameters."""
    model = CASES["toy"].model()
    with world.attach(model, make_optimizer("plain", model), config) as engine:
        names = engine_state(engine)["layout"]
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    return names, [np.concatenate([starts[n] + np.arange(sizes[n]) for n in one]) for one in names]


def broken(world):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": "demo"}) as engine:
        before = values(model)
        loss = CASES["toy"].local_loss(model, 0, world.rank)
        (loss * (float("nan") if world.rank == 1 else 1.0)).backward()
        optimizer.step()
        engine.close(average=False)
    return np.abs(values(model) - before).max()


def test_signs_do_not_hide_what_is_not_finite():
    assert torch.isnan(primitives.signs().apply(None, None, {}, torch.tensor([float("nan")]), None)).all()
    with pytest.raises(relaxcomm.RelaxcommError, match="NaN"):
        in_process(broken, 3)

"""GraVAC against NumPy: all workers change the density alike, by what they have gained together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from tests import references
from tests.algorithms.test_sparse_algorithms import bucket_places, rules
from tests.engine.harness import assert_histories_agree, engine_state, in_process, simulated_workers, train

STEPS = 40
MOST, LEAST, WINDOW = 0.5, 0.02, 4


class Reference:
    """Top-k with error feedback whose density follows the gain."""

    def __init__(self, gain):
        self.gain, self.density, self.gains, self.kept, self.seen = gain, MOST, [], 0.0, []

    def __call__(self, rows):
        wanted = rows + self.kept
        order = np.argsort(-np.abs(wanted), axis=1, kind="stable")
        squares = np.take_along_axis(wanted, order, axis=1) ** 2
        k, half = (max(int(one * rows.shape[1]), 1) for one in (self.density, max(LEAST, self.density / 2)))
        self.gains.append([(squares[:, :count].sum(1) / squares.sum(1)).mean() for count in (k, half)])
        self.seen.append(self.density)
        sent = np.zeros_like(wanted)
        np.put_along_axis(sent, order[:, :k], np.take_along_axis(wanted, order[:, :k], axis=1), axis=1)
        self.kept = wanted - sent
        if len(self.gains) == WINDOW:
            now, at_half = np.mean(self.gains, axis=0)
            if at_half >= self.gain:
                self.density = max(LEAST, self.density / 2)
            elif now < self.gain:
                self.density = min(MOST, 2 * self.density)
            self.gains = []
        return sent.mean(axis=0)


@pytest.mark.parametrize(("gain", "falls"), [(0.4, True), (0.85, True), (1.0, False)])
@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
def test_gravac(gain, falls, bucket_bytes):
    algorithm = {"name": "gravac", "gain": gain, "most": MOST, "least": LEAST, "window": WINDOW}
    config = {"algorithm": algorithm, "bucket_bytes": bucket_bytes}
    coder = Reference(gain)
    expected = references.coded_sgd(
        simulated_workers(3), STEPS, lambda rows, *_: coder(rows), in_process(bucket_places, 3, config)[0]
    )
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)
    assert (min(coder.seen) < MOST) == falls
    if gain == 0.4:  # it goes both ways
        assert max(np.diff(coder.seen)) > 0 > min(np.diff(coder.seen))


def test_bounds_that_cross_are_refused():
    with pytest.raises(relaxcomm.ConfigError, match="above most"):
        primitives.adaptive_top_k(most=0.01, least=0.1)


def test_other_exchanges_are_refused():
    coder = primitives.error_feedback(compressor=primitives.adaptive_top_k())
    with pytest.raises(relaxcomm.CompositionError, match="all_gather"):
        relaxcomm.Rule(payload=primitives.gradients(), compressor=coder, exchange=primitives.scatter_gather())


def test_a_model_without_gradients_gains_everything():
    """Zeros are sent in full by nothing; the density falls to the least and no number is NaN."""
    config = {"algorithm": rules({"adaptive_top_k": {"window": 1}}, "all_gather")}

    def zeros(world):
        model = torch.nn.Linear(40, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, config) as engine:
            for _ in range(12):
                (model(torch.zeros(2, 40)).sum() * 0).backward()
                optimizer.step()
            state = engine_state(engine)
        return [float(slots["compressor"]["density"]) for _, _, slots in state["slots"]]

    with pytest.warns(relaxcomm.CompositionWarning):
        found = in_process(zeros, 2)
    assert {density for rank in found for density in rank} == {0.001}


def test_a_run_in_another_default_type_loads_its_own_state():
    def run(world):
        model = torch.nn.Linear(6, 2, dtype=torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, {"algorithm": "gravac"}) as engine:
            model(torch.ones(1, 6, dtype=torch.float32)).sum().backward()
            optimizer.step()
            engine.load_state_dict(engine.state_dict())

    torch.set_default_dtype(torch.bfloat16)
    try:
        in_process(run, 3)
    finally:
        torch.set_default_dtype(torch.float32)

"""A run goes on whatever its model, or a part of it, is wrapped in by then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import attach, checkpoint, simulate
from tests.replica.test_sent_model import compiled, inside, renamed, untouched


def run(group, wrapped, acts, folder):
    """Parameters, buffers and moments after a save or a load, without names."""
    torch.manual_seed(group.rank())
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = wrapped(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with attach(model, optimizer, {"algorithm": "diloco", "bucket_bytes": 60}, process_group=group) as engine:
        if acts is checkpoint.save:
            for _ in range(3):
                model(torch.randn(8, 3)).square().mean().backward()
                optimizer.step()
        acts(engine, folder)
        held = [optimizer.state[p]["momentum_buffer"] for p in inner.parameters()]
        found = [one.clone() for one in (*inner.parameters(), *inner.buffers(), *held)]
        engine.close(average=False)
    return found


@pytest.mark.parametrize("workers", [3, 2])
@pytest.mark.parametrize("loaded_by", [untouched, compiled, inside, renamed])
@pytest.mark.parametrize("saved_by", [untouched, compiled, renamed])
def test_it_goes_on(saved_by, loaded_by, workers, tmp_path):
    saved = simulate(lambda group: run(group, saved_by, checkpoint.save, tmp_path), 3)
    loaded = simulate(lambda group: run(group, loaded_by, checkpoint.load, tmp_path), workers)
    if workers != len(saved):
        saved = [[sum(held) / len(saved) for held in zip(*saved, strict=True)]] * workers
    tolerance = {"rtol": 0, "atol": 0} if workers == 3 else {"check_dtype": False}
    for ours, theirs in zip(loaded, saved, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)

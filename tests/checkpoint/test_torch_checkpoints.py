"""The engine among what torch.distributed.checkpoint saves: each rank finds its own state again."""

from __future__ import annotations

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

from tests.engine.harness import World, on_gloo, values
from tests.models import CASES, take_step, trainable


def through_torch(world: World, folder: str, stops: bool):
    """Eight steps of diloco; after six of them all is saved, and loaded into a new run, if it stops there."""
    case, kept = CASES["toy"], None
    for span in (range(6), range(6, 8)) if stops else (range(8),):
        model, optimizer = trainable("toy", "plain", seed=world.rank)
        with world.attach(model, optimizer, {"algorithm": {"name": "diloco", "steps": 4}}) as engine:
            if span.start:
                dcp.load({"engine": engine}, checkpoint_id=folder)
                model.load_state_dict(kept)
            for step in span:
                take_step(case.local_loss(model, step, world.rank), optimizer)
            if span.stop == 6:
                dcp.save({"engine": engine}, checkpoint_id=folder)
                kept = {name: value.clone() for name, value in model.state_dict().items()}
                engine.close(average=False)
    return values(model)


@pytest.mark.ranks
def test_plain_save_and_load(tmp_path):
    whole = on_gloo(through_torch, 2, str(tmp_path), False)
    np.testing.assert_array_equal(on_gloo(through_torch, 2, str(tmp_path), True), whole)

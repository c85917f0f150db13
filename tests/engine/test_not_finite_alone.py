"""NaN on one rank, where ranks go on alone: it stays there, its rank says so, the others end with that."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import Link
from tests.engine.harness import World, values
from tests.models import CASES, take_step, trainable
from tests.ranks import RankError, run_ranks

ALONE = "ad_psgd", "async_model_average", "ssp"
TOGETHER = "d_psgd", "sgp", "choco_sgd", "dcd_psgd", "low_precision_decentralized", "one_peer_exponential"
STEPS = 10


def spoilt(world: World, algorithm: str, bad: int, at: int, pace, steps: int = STEPS) -> tuple[str, bool]:
    """A rank's parameter becomes NaN after a step; its error, and whether it is finite."""
    model, optimizer = trainable("toy", "momentum")
    config = {"algorithm": algorithm, "bucket_bytes": 512, "timeout_seconds": 20}
    try:
        with world.attach(model, optimizer, config) as engine:
            for step in range(steps):
                pace()
                take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
                if world.rank == bad and step == at:
                    with torch.no_grad():
                        model[2].bias[3] = float("nan")
            engine.close(average=False)
    except relaxcomm.RelaxcommError as error:
        return f"{type(error).__name__}: {error}", bool(np.isfinite(values(model)).all())
    return "", bool(np.isfinite(values(model)).all())


@pytest.mark.every_other("algorithm", "latency")
@pytest.mark.parametrize(
    ("algorithm", "latency"),
    [*((one, seconds) for one in ALONE for seconds in (0.0, 0.6, 3.0)), *((one, 0.0) for one in TOGETHER)],
)
def test_no_other_rank_ever_holds_it(algorithm, latency):
    """Whoever is spoilt, and whatever is on its way then."""
    for bad in (0, 1):
        for at in (2, 6) if algorithm in ALONE else (2,):

            def rank(group, bad=bad, at=at):
                world = World(group.rank(), 4, group)
                pace = (1.0, 1.3, 2.9, 0.7)[world.rank]
                return spoilt(world, algorithm, bad, at, lambda: group.sleep(pace))

            found = relaxcomm.simulate(rank, 4, link=Link(latency_seconds=latency))
            assert [finite for _, finite in found] == [other != bad for other in range(4)], (bad, at)
            if algorithm in ALONE:
                error = found[bad][0]
                # With a slow link nothing more may leave: then the rank keeps its NaN to itself.
                assert latency == 3.0 or f"on rank {bad};" in error, error
                assert not error or "2.bias" in error
            else:
                assert {error.partition(":")[0] for error, _ in found} == {"NonFiniteError"}


def on_a_rank(rank: int, algorithm: str) -> None:
    """It goes on until it hears of the NaN: on a busy machine nothing may have left in ten steps."""
    text, _ = spoilt(World(rank, 3), algorithm, 1, 2, lambda: time.sleep(0.02), steps=5000)
    raise AssertionError(text)


@pytest.mark.ranks
@pytest.mark.parametrize("algorithm", ["ad_psgd", "async_model_average"])
def test_on_gloo_all_ranks_end_and_say_whose_it_is(algorithm):
    with pytest.raises(RankError) as caught:
        run_ranks(on_a_rank, 3, algorithm)
    texts = {rank: text for rank, (_, text) in caught.value.errors.items()}
    assert texts[1].startswith("NonFiniteError: step ")
    assert "on rank 1;" in texts[1]
    assert "2.bias" in texts[1]
    for rank in (0, 2):
        assert texts[rank].startswith("RankLostError: ")
        assert "rank 1 failed: NonFiniteError: step " in texts[rank]

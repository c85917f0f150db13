"""Every bundled algorithm goes where it went when it was recorded, also resumed, and on Gloo."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaxcomm.config import registry
from tests.engine.harness import on_gloo
from tests.golden.cases import CASES, UNRECORDED
from tests.golden.recorded import ALL, check_counts, distance, load
from tests.golden.trajectories import STOP, train, trajectory

RECORDED = load()
MEASURED = {"auto"}  # goes by the clock
WITHOUT_A_COMMON_STEP = (
    *("ad_psgd", "async_model_average", "decoupled_diloco", "heloco", "ssp"),
    *("fedavg sampled", "fedavg adam"),
)
"""In which saving lets ranks meet that would not; their own tests resume them."""


def test_every_bundled_algorithm_is_recorded():
    bundled = {name for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm"}
    assert {name.split()[0] for name in CASES} - {"rules"} == bundled - MEASURED
    assert set(RECORDED) == {"texts", *(f"{name}/{loop}" for name, loop in ALL)}


def in_turn():
    """Of the loops that a case has been recorded in, one; the others are slow."""
    for number, name in enumerate(CASES):
        loops = [loop for one, loop in ALL if one == name]
        for loop in loops:
            is_quick = loop == loops[number % len(loops)]
            yield pytest.param(name, loop, marks=() if is_quick else pytest.mark.slow)


def assert_resumes(name, loop, folder):
    """Saved after some steps and loaded into all that is made anew, it goes on bit for bit."""
    whole, resumed = trajectory(name, loop, save=folder), trajectory(name, loop, load=folder)
    for one, other in zip(resumed, whole, strict=True):
        assert one.steps == other.steps[STOP:]
        np.testing.assert_array_equal(one.after_close, other.after_close)
        for key in ("steps", "synchronisations", "samples"):
            assert one.counts[key] == other.counts[key], key
    return whole


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "loop"), [*in_turn()])
def test_it_goes_where_it_went(name, loop, tmp_path):
    apart = name.startswith(WITHOUT_A_COMMON_STEP)
    now = trajectory(name, loop) if apart else assert_resumes(name, loop, tmp_path)
    check_counts(RECORDED, f"{name}/{loop}", now)
    assert distance(RECORDED[f"{name}/{loop}"], now) < 1e-9


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNRECORDED)
def test_others_are_resumed(name, tmp_path):
    assert_resumes(name, "plain", tmp_path)


def on_a_rank(world, name):
    return train(world.group, name, "plain", torch.float64)


ON_GLOO = (
    *("adaptive_local_sgd", "bytegrad", "choco_sgd top_k", "d_psgd", "decoupled_diloco all", "des_loc"),
    *("easgd", "fedavg sampled", "gaussiank_sgd", "hierarchical_local_sgd", "local_sgd late", "noloco"),
    *("powersgd", "randomk_sgd", "sgp", "streaming_diloco"),
)


@pytest.mark.ranks
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ON_GLOO)
def test_it_goes_there_on_gloo(name):
    """Each exchange once, with every kind of answer, gather and late result."""
    now = on_gloo(on_a_rank, 3, name)
    check_counts(RECORDED, f"{name}/plain", now)
    assert distance(RECORDED[f"{name}/plain"], now) < 1e-9

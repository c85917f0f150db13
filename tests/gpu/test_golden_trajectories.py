"""Every bundled algorithm goes over NCCL where it went in one process on a CPU, when that was recorded."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tests.golden.cases import CASES
from tests.golden.recorded import check_counts, distance, load
from tests.golden.trajectories import RANKS, Trajectory, train
from tests.gpu.places import Place, costly, run

pytestmark = pytest.mark.ranks
RECORDED = load()
LOOP = "accumulated"
BY_THE_CLOCK = (
    *("ad_psgd", "async_model_average", "decoupled_diloco", "heloco"),
    *("ssp stale", "ssp coded"),
)
ROUNDING = 1e-7  # float64, and sums in another order
ALLOWED = {
    **dict.fromkeys(("qsgd", "terngrad"), 0.03),  # drawn from the device's own generator
    "dcd_psgd": 1e-4,  # a sum in another order may round to the level beside
}
CHEAP = ("streaming_diloco", "ssp stale")
CODED = {
    **{"qsgd": 0.03, "sparseloco": 0.02, "gaussiank_sgd": 0.01},  # a rounding may turn a level, or a choice
    **dict.fromkeys(("ef_signsgd", "local_sgd coded", "dgc", "rules"), 1e-3),
}
"""How far float32, which kernels code, may lead away from the record in float64."""


def trained(place: Place, name: str, dtype: torch.dtype) -> Trajectory:
    warnings.simplefilter("ignore")
    return train(None, name, LOOP, dtype, place.device)


@pytest.mark.parametrize("name", [name if name in CHEAP else costly(name) for name in CASES])
def test_it_goes_where_it_went(name):
    now = run(trained, RANKS, name, torch.float64)
    if name.startswith(BY_THE_CLOCK):
        assert all(np.isfinite(one.after_close).all() for one in now)
        assert now[0].counts["steps"] == RECORDED["texts"][f"{name}/{LOOP}"]["counts"][0]["steps"]
    else:
        check_counts(RECORDED, f"{name}/{LOOP}", now)
        assert distance(RECORDED[f"{name}/{LOOP}"], now) < ALLOWED.get(name, ROUNDING)


@pytest.mark.parametrize("name", [name if name == "local_sgd coded" else costly(name) for name in CODED])
def test_in_float32_it_goes_there_as_well_and_ranks_end_equal(name):
    now = run(trained, RANKS, name, torch.float32)
    assert all(np.array_equal(one.after_close, now[0].after_close) for one in now)
    assert distance(RECORDED[f"{name}/{LOOP}"], now) < CODED[name]

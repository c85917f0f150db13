"""A checkpoint that was read on the host goes on on a GPU, with what was late and what was left out."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from torch import nn

import relaxcomm
from tests.gpu.places import Place, costly, flat, run

pytestmark = pytest.mark.ranks
RANKS, STEPS, STOP = 3, 8, 5


def trained(place: Place, algorithm, stops: bool) -> list[float]:
    """The parameters after all steps, before close; with a checkpoint and new objects between."""
    warnings.simplefilter("ignore")
    draw, saved = torch.Generator().manual_seed(place.rank), None
    for span in (range(STOP), range(STOP, STEPS)) if stops else (range(STEPS),):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to(place.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        config = {"algorithm": algorithm, "bucket_bytes": 600}
        with relaxcomm.attach(model, optimizer, config) as engine:
            parts = (model, optimizer, engine)
            if saved is not None:
                states = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
                for part, state in zip(parts, states, strict=True):
                    part.load_state_dict(state)
            for _ in span:
                model(torch.randn(4, 8, generator=draw).to(place.device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            file = io.BytesIO()
            torch.save([part.state_dict() for part in parts], file)
            saved = file.getvalue()
            engine.close(average=False)
    return flat(model)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "streaming_diloco", "steps": 4, "fragments": 2, "delay": 2},
        costly({"name": "local_sgd", "steps": 4, "delay": 2}),
        costly("delayed_sgd"),
        costly({"name": "gaussiank_sgd", "density": 0.3}),
        costly("d_psgd"),
    ],
    ids=["late fragments", "late averages", "late gradients", "residuals", "gossip"],
)
def test_it_goes_on_as_if_nothing_had_been(algorithm):
    whole = run(trained, RANKS, algorithm, False)
    resumed = run(trained, RANKS, algorithm, True)
    for one, other in zip(resumed, whole, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)

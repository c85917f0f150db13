"""A run goes on whatever its model, or a part of it, is wrapped in by then."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from relaxcomm import ConfigError, attach, checkpoint, simulate
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


class Adapted(nn.Sequential):
    """Its state leaves a trained layer out, has another by its own name, and what its forwards have made."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.seen = None

    def forward(self, x):
        self.seen = torch.zeros(3, dtype=torch.uint8)
        return super().forward(x)

    def state_dict(self):
        kept = {f"base.{name}": value for name, value in self[0].state_dict().items()}
        return {**kept, **self[1].state_dict(prefix="1."), "_extra_state": self.seen}

    def load_state_dict(self, state_dict):
        self[0].load_state_dict({name: state_dict[f"base.{name}"] for name in self[0].state_dict()})
        self.seen = state_dict["_extra_state"]
        return super().load_state_dict({k: v for k, v in state_dict.items() if k[0] == "1"}, strict=False)


def adapted(model: nn.Sequential) -> nn.Module:
    return Adapted(*model)


@pytest.mark.parametrize("workers", [3, 2])
@pytest.mark.parametrize(
    ("saved_by", "loaded_by"),
    [
        *product([untouched, compiled, renamed], [untouched, compiled, inside, renamed]),
        (adapted, adapted),
    ],
)
def test_it_goes_on(saved_by, loaded_by, workers, tmp_path):
    saved = simulate(lambda group: run(group, saved_by, checkpoint.save, tmp_path), 3)
    loaded = simulate(lambda group: run(group, loaded_by, checkpoint.load, tmp_path), workers)
    if workers != len(saved):
        saved = [[sum(held) / len(saved) for held in zip(*saved, strict=True)]] * workers
    tolerance = {"rtol": 0, "atol": 0} if workers == 3 else {"check_dtype": False}
    for ours, theirs in zip(loaded, saved, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_refused_when_it_is_saved(tmp_path):
    """torch saves one, and does not read the table of contents that speaks of it."""
    model = nn.Linear(3, 1)
    model.register_buffer("codes", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer, "bsp") as engine, pytest.raises(ConfigError, match=r"codes is a quantized"):
        checkpoint.save(engine, tmp_path)

"""What optimizers keep in types and shapes other than their parameters' comes back as it was."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from relaxcomm import checkpoint
from relaxcomm.engine.membership.admission import exported_replica, restore_replica
from relaxcomm.engine.membership.parcels import decoded, encoded
from relaxcomm.replica.replica import Replica
from tests.engine.harness import in_process
from tests.models import take_step

FACTORED = pytest.param(torch.optim.Adafactor, id="Adafactor")
PRODUCT = pytest.param(torch.optim.NAdam, id="NAdam")  # which multiplies numbers up, in float32


def made(kind, dtype, rank=0):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)).to(dtype)
    return model, kind(model.parameters(), lr=0.05)


def trained(model, optimizer, steps, rank=0):
    for step in steps:
        draw = torch.Generator().manual_seed(step * 7 + rank)
        inputs = torch.randn(4, 16, generator=draw).to(next(model.parameters()).dtype)
        take_step(model(inputs).square().mean(), optimizer)


def kept(model, optimizer):
    """All that training goes on from."""
    return [
        (value.dtype, value.tolist())
        for parameter in model.parameters()
        for value in (parameter.detach(), *optimizer.state[parameter].values())
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [FACTORED, PRODUCT])
def test_a_run_goes_on_bit_for_bit(kind, dtype, tmp_path):
    def run(world, is_resumed):
        model, optimizer = made(kind, dtype, world.rank)
        with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 256}) as engine:
            if is_resumed:
                assert checkpoint.load(engine, tmp_path)
            else:
                trained(model, optimizer, range(4), world.rank)
                checkpoint.save(engine, tmp_path)
            trained(model, optimizer, range(4, 10), world.rank)
        return kept(model, optimizer)

    whole = in_process(run, 3, False)
    assert in_process(run, 3, True) == whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [FACTORED, PRODUCT])
def test_a_newcomer_steps_as_the_others_do(kind, dtype):
    model, optimizer = made(kind, dtype)
    trained(model, optimizer, range(5))
    handed = encoded(exported_replica(Replica(model, [optimizer], None, 256)))
    other, its_optimizer = made(kind, dtype, rank=1)
    restore_replica(Replica(other, [its_optimizer], None, 256), decoded(handed))
    for one in ((model, optimizer), (other, its_optimizer)):
        trained(*one, range(5, 8))
    assert kept(other, its_optimizer) == kept(model, optimizer)


@pytest.mark.parametrize("clients", [3, 6])
def test_clients_moments_may_have_shapes_of_their_own(clients, tmp_path):
    data = TensorDataset(torch.randn(48, 16), torch.randn(48, 4))
    config = {"algorithm": {"name": "fedavg", "clients": clients}, "bucket_bytes": 256}

    def run(world, is_resumed):
        model, optimizer = made(torch.optim.Adafactor, torch.float32)
        with world.attach(model, optimizer, config) as engine:
            loader = engine.loader(data, batch_size=4)
            if is_resumed:
                assert checkpoint.load(engine, tmp_path)
            for epoch in range(2 if is_resumed else 0, 3):
                if epoch == 2 and not is_resumed:
                    checkpoint.save(engine, tmp_path)
                for x, y in loader:
                    take_step(torch.nn.functional.mse_loss(model(x), y), optimizer)
        return kept(model, optimizer)

    whole = in_process(run, 3, False)
    assert in_process(run, 3, True) == whole

"""Buffers that are no statistics, such as masks, stay as they are; statistics are averaged beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import attach, simulate

KEPT = {
    "mask": lambda: torch.full((3, 3), float("-inf")).triu(1),
    "least": lambda: torch.full((3,), torch.finfo(torch.float32).min),
    "short": lambda: torch.full((3,), torch.finfo(torch.float16).min, dtype=torch.float16),
    "sentinel": lambda: torch.tensor([1.0, float("nan")]),
    "huge": lambda: torch.full((2,), 3e38),
    "expanded": lambda: torch.ones(1).expand(4),
    "eight_bits": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "graph": lambda: torch.eye(3).to_sparse(),
    "rows": lambda: torch.eye(3).to_sparse_csr(),
}


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        for name, make in KEPT.items():
            self.register_buffer(name, make())

    def forward(self, x):
        return self.norm(self.layer(x))


def dense(buffer):
    return (buffer.to_dense() if buffer.layout != torch.strided else buffer).float()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    "algorithm", ["bsp", {"name": "local_sgd", "steps": 2}, "d_psgd", {"name": "diloco", "steps": 2}], ids=str
)
def test_they_stay_as_they_are(algorithm):
    def rank(group):
        torch.manual_seed(0)
        model = Masked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        config = {"algorithm": algorithm, "bucket_bytes": 32}
        with attach(model, optimizer, config, process_group=group) as engine:
            for step in range(4):
                generator = torch.Generator().manual_seed(10 * step + group.rank())
                model(torch.randn(8, 3, generator=generator)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            own = model.norm.running_mean.clone()
            with engine.averaged():
                averaged = model.norm.running_mean.clone()
        return {name: dense(getattr(model, name)) for name in KEPT}, own, averaged, model.norm.running_mean

    ranks = simulate(rank, 3)
    mean = torch.stack([own for _, own, _, _ in ranks]).mean(0)
    for kept, _, averaged, end in ranks:
        for name, make in KEPT.items():
            torch.testing.assert_close(kept[name], dense(make()), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(averaged, mean)
        torch.testing.assert_close(end, mean)


class Ranged(nn.Module):
    """Keeps the least and largest input that it has seen, as observers for quantisation do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("least", torch.tensor(float("inf")))
        self.register_buffer("most", torch.full((3,), float("-inf")))
        self.register_buffer("unseen", torch.tensor(float("inf")))

    def forward(self, x):
        self.least = torch.minimum(self.least, x.min())
        self.most = torch.maximum(self.most, x.amax(0))
        return self.layer(x)


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 2}], ids=str)
def test_what_becomes_a_statistic_is_averaged_when_all_evaluate_and_at_the_end(algorithm):
    def rank(group):
        torch.manual_seed(0)
        model = Ranged()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
            for step in range(4):
                generator = torch.Generator().manual_seed(10 * step + group.rank())
                model(torch.randn(8, 3, generator=generator)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            found = [(model.least.clone(), model.most.clone())]
            with engine.averaged():
                found.append((model.least.clone(), model.most.clone()))
            found.append((model.least.clone(), model.most.clone()))
        return [*found, (model.least, model.most)], model.unseen.item()

    ranks = simulate(rank, 3)
    for index in range(2):
        mean = torch.stack([found[0][index] for found, _ in ranks]).mean(0)
        for (own, averaged, back, end), unseen in ranks:
            assert not torch.equal(own[index], mean)
            torch.testing.assert_close(averaged[index], mean)
            torch.testing.assert_close(back[index], own[index], rtol=0, atol=0)
            torch.testing.assert_close(end[index], mean)
            assert unseen == float("inf")


@pytest.mark.parametrize("users", [(), (1,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("size", [8, 1 << 18], ids=["small", "in place"])
def test_a_complex_parameter_that_some_rank_does_not_use(size, users):
    def rank(group):
        weight, other = (nn.Parameter(torch.zeros(size, dtype=torch.complex64)) for _ in range(2))
        model = nn.ParameterList([weight, other])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with attach(model, optimizer, "bsp", process_group=group):
            loss = other.real.sum() + (weight.real.sum() if group.rank() in users else 0.0)
            loss.backward()
            return None if weight.grad is None else weight.grad[0].item()

    expected = complex(len(users) / 3) if users else None
    for found in simulate(rank, 3):
        assert found == (None if expected is None else pytest.approx(expected))

"""Buffers that are no statistics, such as masks, stay as they are; statistics are averaged beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize
from torch.nn.utils import prune

from relaxcomm import UsageError, attach, simulate
from tests.models import take_step

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


def train(model, optimizer, rank, *, steps):
    """On data of this rank's own."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + rank)
        take_step(model(torch.randn(8, 3, generator=generator)).square().sum(), optimizer)


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
            train(model, optimizer, group.rank(), steps=4)
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
            train(model, optimizer, group.rank(), steps=4)
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


class Growing(nn.Module):
    """Keeps a range that has no entry before it is looked at, and is the same tensor then.

    Args:
        seen: the number of its entries then.
        neighbour: of the buffer beside it; a small one shares a bucket with it, and is copied otherwise.
    """

    def __init__(self, seen: int, neighbour: int) -> None:
        super().__init__()
        self.layer, self.seen, self.calls = nn.Linear(3, 3), seen, 0
        self.register_buffer("least", torch.empty(0))
        self.register_buffer("most", torch.zeros(neighbour))

    def forward(self, x):
        self.calls += 1
        self.most.fill_(x.max().item())
        if self.calls >= 3:
            self.least.resize_(self.seen).fill_(x.min().item() - 100)
        return self.layer(x)


def grown(group, seen, neighbour=2):
    torch.manual_seed(0)
    model = Growing(seen, neighbour)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 2}}, process_group=group):
        for step in range(4):
            take_step(model(torch.full((2, 3), step + 10.0 * group.rank())).square().mean(), optimizer)
    return model.least.tolist(), model.most.unique().tolist()


@pytest.mark.parametrize("neighbour", [2, 8192])
def test_a_buffer_that_is_empty_at_attach_is_averaged_at_the_end(neighbour):
    assert simulate(lambda group: grown(group, 3, neighbour), 3) == [([-87.0] * 3, [13.0])] * 3


def test_a_buffer_that_is_still_empty_on_some_rank_is_left_as_it_is():
    ranks = simulate(lambda group: grown(group, 2 if group.rank() else 0), 3)
    assert ranks == [([], [13.0]), ([-87.0] * 2, [13.0]), ([-77.0] * 2, [13.0])]


def test_a_buffer_that_grows_to_several_shapes_is_refused_on_all_ranks():
    def rank(group):
        with pytest.raises(UsageError, match=r"least was empty .* the shapes \[\[1\], \[2\], \[3\]\]"):
            grown(group, 1 + group.rank())
        return True

    assert simulate(rank, 3) == [True] * 3


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


class Cached(nn.Module):
    """Has buffers that it makes anew where a batch is longer than all before."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.layer, self.persistent = nn.Linear(4, 4), persistent
        self.grow(8)

    def grow(self, length):
        self.register_buffer("cos_cached", torch.ones(length, 4), persistent=self.persistent)

    def forward(self, x):
        if len(x) > len(self.cos_cached):
            self.grow(len(x))
        return self.layer(x * self.cos_cached[: len(x)])


def trained(group, *, persistent, algorithm):
    model = Cached(persistent=persistent)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
        for step in range(4):
            length = 12 if group.rank() and step == 1 else 6
            take_step(model(torch.ones(length, 4)).square().mean(), optimizer)
        with engine.averaged():
            pass
    return len(model.cos_cached)


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 2}], ids=str)
def test_a_cache_may_grow_on_one_rank(algorithm):
    lengths = simulate(lambda group: trained(group, persistent=False, algorithm=algorithm), 2)
    assert lengths == [8, 12]


@pytest.mark.parametrize(
    ("algorithm", "persistent", "differ"),
    [("bsp", False, False), ("bsp", True, True), ("local_sgd", False, True)],
)
def test_a_cache_is_no_reason_to_exchange_replicas_that_are_equal(algorithm, persistent, differ):
    """As of rotary models, whose only buffer of floats is one."""

    def rank(group):
        model = Cached(persistent=persistent)
        model.register_buffer("places", torch.arange(8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
            model(torch.ones(6, 4)).square().mean().backward()
            optimizer.step()
            may_differ = engine.replicas_may_differ
        return may_differ, engine.statistics["evaluation_bytes_sent"] > 0

    assert simulate(rank, 2) == [(differ, differ)] * 2


@pytest.mark.parametrize(
    "algorithm",
    ["bsp", "d_psgd", *({"name": "local_sgd", "steps": 2, "delay": late} for late in (0, 1))],
    ids=str,
)
def test_a_buffer_of_the_state_that_has_grown_on_a_rank_is_named_on_all(algorithm):
    words = (
        r"buffer cos_cached is averaged.* shape \[8, 4\].*now it has \[12, 4\] on rank 1,.*persistent=False"
    )

    def rank(group):
        with pytest.raises(UsageError, match=words):
            trained(group, persistent=True, algorithm=algorithm)
        return True

    assert simulate(rank, 3) == [True] * 3


def test_a_mask_that_has_become_a_statistic_of_another_shape_is_named_on_all():
    def rank(group):
        model = Ranged()
        with (
            pytest.raises(UsageError, match=r"buffer unseen .* shape \[\] .* has \[2\] on rank 1,"),
            attach(model, torch.optim.SGD(model.parameters()), "bsp", process_group=group),
        ):
            model.unseen = torch.zeros(2 if group.rank() == 1 else ())
        return True

    assert simulate(rank, 3) == [True] * 3


def pruned(group, *, in_averaged):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    prune.l1_unstructured(model[0], "weight", 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    config = {"algorithm": {"name": "local_sgd", "steps": 8}}
    with attach(model, optimizer, config, process_group=group) as engine:
        for step in range(12):
            inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + group.rank()))
            take_step(model(inputs + 3 * group.rank()).sub(1).square().mean().clamp(max=5), optimizer)
            if step == 5 and not in_averaged:
                prune.l1_unstructured(model[0], "weight", 0.5)
            elif step == 5:
                with engine.averaged():  # `weight` itself is of the last forward
                    prune.l1_unstructured(model[0], "weight", 0.5, importance_scores=model[0].weight_orig)
    return model[0].weight_mask


@pytest.mark.parametrize("in_averaged", [False, True])
def test_a_mask_of_pruning_is_never_averaged(in_averaged):
    """Made from the mean model it is the same on all ranks, and outlasts `averaged`."""
    masks = simulate(lambda group: pruned(group, in_averaged=in_averaged), 3)
    assert [(mask == 0).sum().item() for mask in masks] == [32] * 3
    assert [(mask == 1).sum().item() for mask in masks] == [32] * 3
    assert all(torch.equal(mask, masks[0]) for mask in masks) == in_averaged


class Quantized(nn.Module):
    def __init__(self, observer) -> None:
        super().__init__()
        options = {"qscheme": torch.per_channel_affine} if "PerChannel" in observer.__name__ else {}
        self.fake = quantization.FakeQuantize(observer, 0, 255, averaging_constant=0.1, **options)
        self.unseen = quantization.FakeQuantize()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(self.fake(x))


def quantized(group, *, observer, algorithm):
    """What ranks hold after close, one with brighter images; and whether pairs fitted before."""
    model = Quantized(observer)
    fake, fitted = model.fake, True
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
        for step in range(12):
            if step == 9:
                model.apply(quantization.disable_observer)
                pair = fake.scale.clone(), fake.zero_point.clone()
            if step >= 9:
                fitted &= torch.equal(fake.scale, pair[0]) and torch.equal(fake.zero_point, pair[1])
            generator = torch.Generator().manual_seed(100 * step + group.rank())
            inputs = torch.randn(32, 6, generator=generator) + 2.0 * group.rank()
            take_step(model(inputs).square().mean(), optimizer)
        with engine.averaged():
            fitted &= torch.equal(fake.scale, pair[0]) and torch.equal(fake.zero_point, pair[1])
    expected = fake.calculate_qparams()
    fitted &= torch.equal(fake.scale, expected[0]) and torch.equal(fake.zero_point, expected[1].int())
    return fitted, fake.scale.tolist(), fake.zero_point.tolist(), pair[1].tolist()


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 4}], ids=str)
@pytest.mark.parametrize(
    "observer",
    [quantization.MovingAverageMinMaxObserver, quantization.MovingAveragePerChannelMinMaxObserver],
)
def test_a_fake_quantizers_scale_fits_its_zero_point(observer, algorithm):
    (*first, before), (*second, other) = simulate(
        lambda group: quantized(group, observer=observer, algorithm=algorithm), 2
    )
    assert before != other, "each rank has a range of its own until the end"
    assert first == second
    assert first[0]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
def test_a_fake_quantizers_scale_that_is_learnt_is_a_parameter():
    made = _LearnableFakeQuantize(quantization.MovingAverageMinMaxObserver, 0, 255, scale=0.1, zero_point=0.0)
    made.enable_static_estimate()
    model = nn.Sequential(nn.Linear(4, 4), made)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(model, optimizer, {"algorithm": "local_sgd"}):
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        scale = made.scale.detach().clone()
    assert torch.equal(made.scale, scale)

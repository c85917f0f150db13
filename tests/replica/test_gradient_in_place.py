"""A large gradient is exchanged in the memory where autograd has put it, unless somebody else looks there."""

from __future__ import annotations

import pytest
import torch

import relaxcomm
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.replica.gradient_in_place import GradientInPlace
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.step.plan import Plan
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from tests.models import make_optimizer
from tests.ranks import run_ranks

MIB = 1 << 20
SIDE = 512  # squared it is 1 MiB of float32


def lone(parameter):
    return GradientInPlace(Bucket(0, [Item("weight", parameter)]))


def matrix():
    return torch.nn.Parameter(torch.zeros(SIDE, SIDE))


def test_it_stays_and_is_multiplied():
    parameter = matrix()
    parameter.grad = torch.full_like(parameter, 3.0)
    place, buffer = parameter.grad.data_ptr(), lone(parameter)
    for expected in (1.5, 0.75):  # the second time as after another backward that has added nothing
        buffer.expect_all()
        buffer.collect(0.5)
        assert parameter.grad.data_ptr() == buffer.main.data_ptr() == place
        assert parameter.grad.unique().tolist() == [expected]
    assert (buffer.unused, buffer.flags.tolist()) == ([], [1.0])


def test_a_gradient_in_the_parameters_own_strides_stays():
    parameter = torch.nn.Parameter(torch.zeros(64, 64, 9, 9).to(memory_format=torch.channels_last))
    parameter.grad = torch.randn_like(parameter)
    assert not parameter.grad.is_contiguous()
    wanted, place, buffer = parameter.grad / 2, parameter.grad.data_ptr(), lone(parameter)
    buffer.expect_all()
    buffer.collect(0.5)
    assert buffer.main.data_ptr() == place
    torch.testing.assert_close(buffer.views[0], wanted, rtol=0, atol=0)
    torch.testing.assert_close(parameter.grad, wanted, rtol=0, atol=0)


def test_one_that_shares_its_memory_is_copied():
    first, second = matrix(), matrix()
    (first.view(-1) + second.view(-1)).mul(2.0).sum().backward()
    assert first.grad.data_ptr() == second.grad.data_ptr()  # what this is about
    buffers = [lone(first), lone(second)]
    for buffer in buffers:
        buffer.expect_all()
        buffer.collect(0.5)
    assert first.grad.data_ptr() != second.grad.data_ptr()
    assert [p.grad.unique().tolist() for p in (first, second)] == [[1.0], [1.0]]


def test_where_torch_does_not_say_who_shares_it_is_copied(monkeypatch):
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    parameter = matrix()
    parameter.grad = gradient = torch.full_like(parameter, 3.0)
    buffer = lone(parameter)
    buffer.expect_all()
    buffer.collect(0.5)
    assert parameter.grad is not gradient
    assert parameter.grad.unique().tolist() == [1.5]


def test_one_that_a_graph_keeps_is_copied():
    parameter = matrix()
    (gradient,) = torch.autograd.grad(parameter.pow(3).sum() + parameter.sum(), parameter, create_graph=True)
    parameter.grad = gradient
    buffer = lone(parameter)
    buffer.expect_all()
    buffer.collect(0.5)
    assert parameter.grad is not gradient
    assert not parameter.grad.requires_grad
    assert (gradient.unique().tolist(), parameter.grad.unique().tolist()) == ([1.0], [0.5])


@pytest.mark.parametrize("change", ["half", "sparse"])
def test_what_cannot_be_sent_is_told_with_a_remedy(change):
    parameter = matrix()
    buffer = lone(parameter)
    if change == "half":
        parameter.data = parameter.data.half()
        parameter.grad, remedy = torch.ones_like(parameter), "convert the model, attach again"
    else:
        parameter.grad, remedy = torch.ones(SIDE, SIDE).to_sparse(), "use sparse=False"
    buffer.expect_all()
    with pytest.raises(relaxcomm.UsageError, match=remedy):
        buffer.collect(0.5)


@pytest.mark.parametrize(
    ("others", "is_used"),
    [([], False), ([-0.0], True), ([0.0], True), ([1.0, -1.0], True), ([float("nan")], True)],
    ids=["none", "minus zero", "zero", "cancelling", "nan"],
)
def test_the_sign_of_a_zero_says_whether_any_rank_has_one(others, is_used):
    """All that others have is `others` in each entry; this rank and one more have none."""
    mine, another = lone(matrix()), lone(matrix())
    for buffer in (mine, another):
        buffer.expect_all()
        buffer.collect(0.25)
    total = mine.main + another.main
    for value in others:
        parameter = matrix()
        parameter.grad = torch.full_like(parameter, value)
        buffer = lone(parameter)
        buffer.expect_all()
        buffer.collect(0.25)
        total += buffer.main
    assert mine.flags.tolist() == [0.0]
    mine.take_flags(total)
    assert mine.flags.tolist() == [float(is_used)]


def test_one_that_only_others_have_may_be_detached():
    parameter = matrix()
    buffer = lone(parameter)
    buffer.expect_all()
    buffer.collect(0.5)
    buffer.expose_used([1.0])
    parameter.grad.detach_()
    parameter.grad.fill_(2.0)
    assert buffer.main.unique().tolist() == [2.0]


@pytest.mark.parametrize(
    ("algorithm", "buckets", "stay"),
    [
        ("bsp", ["a", "bd", "c"], ["a", "c"]),  # c is larger than a bucket
        ("local_sgd", ["ab", "c", "d"], []),
        ("signsgd", ["ab", "c", "d"], []),
        ("qsgd", ["ab", "c", "d"], []),
        ("delayed_sgd", ["ab", "c", "d"], []),
        ("selsync", ["ab", "c", "d"], []),
    ],
    ids=str,
)
def test_large_gradients_that_stay_have_buckets_of_their_own(algorithm, buckets, stay):
    sizes = {"a": 5 * MIB, "b": 64, "c": 10 * MIB, "d": 2 * MIB}
    items = [Item(name, torch.zeros(size // 4)) for name, size in sizes.items()]
    plan = Plan(parse_algorithm(algorithm), items)
    made = plan.lay_out(fill_buckets(items, list(sizes), plan.algorithm, 9 * MIB, world_size=2))
    assert sorted("".join(bucket.names) for bucket in made) == buckets
    held = {bucket.names[0]: plan.gradients_of(bucket) for bucket in made}
    assert sorted(name for name, one in held.items() if isinstance(one, GradientInPlace)) == stay


class Pairs(torch.nn.Module):
    """Layers of 1 MiB each and small ones, of which a rank may leave some out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(SIDE, SIDE) for name in "abcd"})
        self.head = torch.nn.Linear(SIDE, 3)

    def forward(self, x, names):
        for name in names:
            x = x + 0.1 * torch.tanh(self.layers[name](x))
        return self.head(x)


USED = ["abd", "ab", "a"]  # by rank: nobody uses c
STEPS = 4


def batch(step, rank):
    draw = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, SIDE, generator=draw)


def train(rank, set_to_none):
    model = Pairs()
    optimizer = make_optimizer("momentum", model)
    stayed = []
    config = {"algorithm": "bsp", "bucket_bytes": 4 * MIB, "timeout_seconds": 20}
    with relaxcomm.attach(model, optimizer, config):
        for step in range(STEPS):
            model(batch(step, rank), USED[rank]).square().mean().backward()
            stayed.append(model.layers["a"].weight.grad.data_ptr())
            assert model.layers["c"].weight.grad is None
            assert model.layers["d"].weight.grad is not None
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    return {name: value.clone() for name, value in model.state_dict().items()}, len(set(stayed))


def reference():
    """One worker that sees all batches."""
    model = Pairs()
    optimizer = make_optimizer("momentum", model)
    for step in range(STEPS):
        for rank, names in enumerate(USED):
            (model(batch(step, rank), names).square().mean() / len(USED)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.ranks
@pytest.mark.parametrize("set_to_none", [True, False])
def test_ranks_that_use_different_layers(set_to_none):
    for found, places in run_ranks(train, 3, set_to_none):
        assert set_to_none or places == 1
        for name, expected in reference().items():
            torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)

"""What all ranks tell all others at attach: as much for a model of many tensors as for one of few."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from relaxcomm import ConfigError, attach, simulate
from relaxcomm.engine.attaching.consistency import digest
from relaxcomm.network.in_process import InProcessTransport


def told_at_attach(monkeypatch, layers, differs=False):
    """Bytes of each rank's part of each event while three ranks attach; and what went wrong."""
    told, gather = [], InProcessTransport.gather_objects

    def count(self, value, event, step=None):
        told.append(len(pickle.dumps(value)))
        return gather(self, value, event, step)

    def train(group):
        odd = differs and group.rank() == 2
        widths = [4 if odd and layer == layers - 1 else 3 for layer in range(layers)]
        model = torch.nn.ModuleList(torch.nn.Linear(2, width) for width in widths)
        attach(model, None, "bsp", process_group=group).close()

    with monkeypatch.context() as patch:
        patch.setattr(InProcessTransport, "gather_objects", count)
        try:
            simulate(train, 3)
        except ConfigError as error:
            return told, error
    return told, None


def test_ranks_that_agree_tell_each_other_a_digest(monkeypatch):
    (few, _), (many, _) = (told_at_attach(monkeypatch, layers) for layers in (2, 60))
    assert few == many
    assert max(many) < 300


def test_ranks_that_differ_tell_each_other_everything(monkeypatch):
    _, error = told_at_attach(monkeypatch, 60, differs=True)
    assert "parameter 59.weight: rank 0 has [3, 2]" in str(error)
    assert "rank 2 has [4, 2]" in str(error)


@pytest.mark.parametrize("other", [{"a": "1"}, {"a": "1", "b": "3"}, {"a": "2", "b": "1"}, {}])
def test_digests_differ_where_facts_do(other):
    facts = {"a": "1", "b": "2"}
    assert digest(facts) == digest(dict(facts)) != digest(other)
    assert digest(facts) != digest(dict(reversed(facts.items())))


class Named(nn.Module):
    """Two layers and two running values that are registered in a given order."""

    def __init__(self, layers="ab", buffers="cd", *, expanded=False) -> None:
        super().__init__()
        for name in layers:
            self.add_module(name, nn.Linear(3, 3))
        for name in buffers:
            value = torch.full((1,), float(ord(name)))
            self.register_buffer(name, value.expand(4) if expanded else value.repeat(4))

    def forward(self, x):
        return self.a(x) + self.b(x) + self.c.sum() + self.d.sum()


@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd"])
@pytest.mark.parametrize(
    ("layers", "buffers", "said"),
    [
        ("ba", "cd", "number 1 is parameter a.weight on rank 0, and parameter b.weight on rank 2"),
        ("ab", "dc", "number 1 is buffer c on rank 0, and buffer d on rank 2"),
    ],
    ids=["parameters", "buffers"],
)
def test_every_rank_registers_in_the_same_order(algorithm, layers, buffers, said):
    """Else each would fill its buckets in another one: shapes agree, and tensors would be mixed up."""

    def rank(group):
        model = Named(layers, buffers) if group.rank() == 2 else Named()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(ConfigError, match=said) as caught:
            attach(
                model, torch.optim.SGD(model.parameters(), lr=0.1),
                {"algorithm": algorithm, "bucket_bytes": 48}, process_group=group,
            )  # fmt: skip
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        return str(caught.value)

    assert len(set(simulate(rank, 3))) == 1


def test_buffers_that_are_not_copied_may_be_in_any_order():
    def rank(group):
        model = Named(buffers="dc" if group.rank() == 2 else "cd", expanded=True)
        attach(model, None, "bsp", process_group=group).close()
        return model.c[0].item(), model.d[0].item()

    assert simulate(rank, 3) == [(99.0, 100.0)] * 3


def test_every_rank_copies_the_same_buffers():
    def rank(group):
        attach(Named(expanded=group.rank() == 2), None, "bsp", process_group=group)

    with pytest.raises(ConfigError, match=r"buffer c: rank 0 has \[4\] .*, rank 2 has what is not copied"):
        simulate(rank, 3)


def test_a_buffer_that_is_registered_anew_keeps_its_place():
    """On one rank alone it comes last in the model."""

    def rank(group):
        model = Named()
        with attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "local_sgd", process_group=group):
            if group.rank() == 2:
                value = model.c
                del model.c
                model.register_buffer("c", value)
        return model.c[0].item(), model.d[0].item()

    assert simulate(rank, 3) == [(99.0, 100.0)] * 3


def test_one_rank_alone_may_compile_the_whole_model():
    """Its parameters and buffers have other names, and are exchanged with the others'."""

    def rank(group):
        torch.manual_seed(group.rank())
        model = plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        if group.rank() == 0:
            model = torch.compile(plain, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"algorithm": {"name": "local_sgd", "steps": 2}, "bucket_bytes": 48}
        with attach(model, optimizer, config, process_group=group) as engine:
            for _ in range(3):
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
            with engine.averaged():
                mean = {name: value.tolist() for name, value in plain.state_dict().items()}
        return mean

    found = simulate(rank, 3)
    assert found == [found[0]] * 3

"""What one rank's model holds, sent to ranks of which some have compiled theirs, or name it otherwise."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from relaxcomm import ConfigError
from relaxcomm.engine.membership import parcels, survival
from relaxcomm.engine.membership.admission import exported_replica, frozen, restore_replica
from relaxcomm.replica import sent_model
from relaxcomm.replica.replica import Replica
from tests.engine.harness import World, in_process


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def inside(model: nn.Sequential) -> nn.Sequential:
    """With a part that is compiled, as a stack of blocks is."""
    return nn.Sequential(compiled(model[0]), *model[1:])


def untouched(model: nn.Module) -> nn.Module:
    return model


def sent_by_1(world: World, how, on):
    """The replicas after a step that rank 1 alone has finished, which it sends to the others."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = how(inner) if on in (world.rank, None) else inner
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 60}) as engine:
        model(torch.randn(8, 3, generator=draw)).square().mean().backward()
        optimizer.step()
        if world.rank == 1:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 1.0
        statistics = inner[1].running_mean.tolist()
        survival.send_shared(engine._session.bound, 1)
        kept_its_own = inner[1].running_mean.tolist() == statistics
        engine.close(average=False)
    return [p.flatten().tolist() for p in inner.parameters()], kept_its_own


def renamed(model: nn.Module) -> nn.Module:
    """With other names in `state_dict` than buffers have, as under activation checkpointing."""
    return nn.Sequential(*(checkpoint_wrapper(one) for one in model))


def adapted(model: nn.Module) -> nn.Module:
    """With one layer alone in `state_dict`."""
    model.state_dict = lambda: {"2.bias": model[2].bias.detach()}
    return model


@pytest.mark.parametrize(
    ("how", "on"), [*product([compiled, inside], [1, 2]), (renamed, None), (adapted, None)]
)
def test_a_model_is_the_same_on_all_whatever_state_dict_calls_it(how, on):
    (first, *others), keep_their_own = zip(*in_process(sent_by_1, 3, how, on), strict=True)
    assert others == [first, first]
    assert all(keep_their_own)


@pytest.mark.parametrize("of_sender", [untouched, compiled])
@pytest.mark.parametrize("of_newcomer", [untouched, compiled, inside])
def test_a_newcomer_takes_over_all_of_it(of_sender, of_newcomer):
    ours, theirs = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2))
    ours(torch.randn(4, 2))
    sender, newcomer = (
        Replica(model, [torch.optim.SGD(model.parameters(), lr=0.1)], None, 256)
        for model in (of_sender(ours), of_newcomer(theirs))
    )
    restore_replica(newcomer, parcels.decoded(parcels.encoded(exported_replica(sender))))
    now = theirs.state_dict()
    assert all(torch.equal(now[name], value) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("where", ["on this rank, and not", "not on this rank, but"])
def test_a_name_that_one_rank_alone_has_is_refused(where):
    more, less = (nn.Linear(2, 2) for _ in range(2))
    more.register_buffer("cache", torch.ones(3))
    here, sender = (more, less) if where.startswith("on") else (less, more)
    before = here.weight.tolist()
    with pytest.raises(ConfigError, match=rf"state_dict has cache {where} on the rank .* persistent=False"):
        sent_model.load(compiled(here), sent_model.state(sender))
    assert here.weight.tolist() == before


def test_a_newcomer_takes_over_what_has_grown_and_needs_no_scaler():
    ours, theirs = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    for model, count in ((ours, 5), (theirs, 1)):
        model.register_buffer("queue", torch.arange(count))
    queue, scaler = theirs.queue, torch.amp.GradScaler("cpu")
    sender, newcomer = Replica(ours, [], None, 256), Replica(theirs, [], scaler, 256)
    restore_replica(newcomer, parcels.decoded(parcels.encoded(exported_replica(sender))))
    assert theirs.queue is queue
    assert queue.tolist() == [0, 1, 2, 3, 4]


class Adapted(nn.Module):
    """Its state_dict has adapters alone, as that of a model with low-rank ones has."""

    def __init__(self):
        super().__init__()
        self.base, self.adapter, self.head = (nn.Linear(2, 2) for _ in range(3))
        self.base.requires_grad_(False)

    def state_dict(self):
        return self.adapter.state_dict(prefix="adapter.")

    def load_state_dict(self, state_dict):
        return super().load_state_dict(state_dict, strict=False)


def test_a_newcomer_takes_over_parameters_that_no_state_dict_has():
    ours, theirs = Adapted(), Adapted()
    sender, newcomer = (Replica(model, [], None, 256) for model in (ours, theirs))
    restore_replica(newcomer, parcels.decoded(parcels.encoded(exported_replica(sender))))
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


@pytest.mark.parametrize(("bases", "is_sent"), [([0], False), ([0, 0], False), ([0, 1], True)])
def test_what_is_not_trained_is_sent_to_those_who_lack_it(bases, is_sent):
    def made(trained: int, base: int) -> Replica:
        torch.manual_seed(base)
        model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
        nn.init.constant_(model[1].weight, trained)
        return Replica(model, [], None, 256)

    sender, *joined = made(1, 0), *(made(2, base) for base in bases)
    state = exported_replica(sender, [frozen(one) for one in joined])
    assert is_sent == ("0.weight" in state["parameters"]) == (state["model"]["0.weight"] is not None)
    for newcomer in joined:
        restore_replica(newcomer, parcels.decoded(parcels.encoded(state)))
        assert all(map(torch.equal, newcomer.model.parameters(), sender.model.parameters()))


class Packed(nn.Module):
    """Its state has a buffer in another shape than the module."""

    def __init__(self, first):
        super().__init__()
        self.register_buffer("table", first + torch.arange(4.0))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[f"{prefix}table"] = self.table.reshape(2, 2)

    def _load_from_state_dict(self, state_dict, prefix, *others):
        state_dict[f"{prefix}table"] = state_dict[f"{prefix}table"].reshape(4)
        super()._load_from_state_dict(state_dict, prefix, *others)


def test_a_buffer_that_the_state_has_in_another_shape_has_not_grown():
    ours, theirs = Packed(1), Packed(0)
    sent_model.load(theirs, sent_model.state(ours))
    assert torch.equal(theirs.table, ours.table)


def test_a_load_asks_a_model_for_its_state_as_seldom_as_can_be():
    """Once for what it holds, and once for what goes back in place of that."""

    class Counting(nn.Linear):
        asked = 0

        def state_dict(self, *args, **kwargs):
            self.asked += 1
            return super().state_dict(*args, **kwargs)

    model = Counting(2, 2)
    replica, saved = Replica(model, [], None, 1 << 20), {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    replica.load_model(saved)
    assert model.asked == 2
    assert model.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]

"""Models that something else exchanges, or another engine: refused, whenever they were wrapped."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import relaxcomm
from relaxcomm import CompositionError, UsageError
from tests.engine.harness import World, on_gloo

X = torch.ones(5, 3)


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def sharded(model):
    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def flattened(model, *, use_orig_params=True):
    return FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=torch.device("cpu"))


def wrapped_part(model):
    model[0] = DDP(model[0])
    return model


WRAPPERS = {
    "a part under DDP": (wrapped_part, r"0 is under DistributedDataParallel.*`model.module`"),
    "DDP": (DDP, r"DistributedDataParallel.*`model.module`.*relaxcomm.ddp_hook\(compressor\)"),
    "static DDP": (lambda m: DDP(m, static_graph=True), "DistributedDataParallel"),
    "compiled DDP": (lambda m: torch.compile(DDP(m), backend="eager"), "DistributedDataParallel"),
    "DDP of a compiled one": (lambda m: DDP(torch.compile(m, backend="eager")), "DistributedDataParallel"),
    "DDP around more": (lambda m: DDP(nn.Sequential(m, nn.Linear(2, 2))), "DistributedDataParallel"),
    "replicate": (replicate, "is (under|called by) D(DP|istributedDataParallel)"),
    "FSDP": (flattened, "FullyShardedDataParallel.*shard it with torch.distributed.fsdp.fully_shard"),
    "FSDP, flat": (
        lambda m: flattened(m, use_orig_params=False),
        "FullyShardedDataParallel|replaced or removed",
    ),
    "fully_shard": (sharded, "no dimension of replicas.*fully_shard|replaced or removed"),
}


def wrapped_then_attached(world: World, name: str):
    wrap, words = WRAPPERS[name]
    model = wrap(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CompositionError, match=words):
        world.attach(model, optimizer, {"algorithm": "bsp"})
    assert not optimizer._optimizer_step_pre_hooks


def attached_then_wrapped(world: World, name: str, algorithm: str):
    wrap, words = WRAPPERS[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=words), world.attach(model, optimizer, {"algorithm": algorithm}):  # noqa: PT012  # the first step is one of many statements
        wrapped = wrap(model)
        wrapped(X).sum().backward()
        optimizer.step()
    torch._dynamo.reset()


def wrapped_before_and_called(world: World):
    """The model inside was attached, as the error says, but the wrapper is called."""
    model = make()
    wrapper = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        model(X).sum().backward()  # the reducer waits for its own forward
        optimizer.step()
        with torch.no_grad():
            wrapper(X)  # exchanges nothing
        with pytest.raises(UsageError, match="is called by DistributedDataParallel"):
            wrapper(X)


def another_is_under_ddp(world: World):
    """A model of its own inside DDP calls the attached one, as a discriminator does a generator."""
    model, other = make(), DDP(nn.Linear(2, 2))
    other.module.register_forward_pre_hook(lambda module, inputs: (model(X),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        other(torch.ones(5, 2)).sum().backward()
        optimizer.step()


def together(world: World, scenario_arguments):
    """Several scenarios in one process: each is short."""
    for scenario, *arguments in scenario_arguments:
        scenario(world, *arguments)


@pytest.mark.ranks
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_model_is_refused_at_attach(name):
    on_gloo(together, 3, [(wrapped_then_attached, name)])


@pytest.mark.every_other("name")
@pytest.mark.ranks
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapping_that_comes_later_is_refused_in_the_first_step(name):
    on_gloo(together, 3, [(attached_then_wrapped, name, algorithm) for algorithm in ("bsp", "local_sgd")])


@pytest.mark.ranks
def test_a_wrapper_is_refused_only_where_it_is_called():
    on_gloo(together, 3, [(wrapped_before_and_called,), (another_is_under_ddp,)])


def test_data_parallel_is_refused():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CompositionError, match=r"DataParallel.*one process a GPU"):
        relaxcomm.attach(nn.DataParallel(model), optimizer, "bsp")
    with relaxcomm.attach(model, optimizer, "bsp"):
        copy = model._replicate_for_data_parallel()  # what it calls on each GPU
        with pytest.raises(UsageError, match="called by DataParallel"):
            copy(X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
def test_what_is_scripted_or_traced_is_refused():
    model = make()
    part = torch.jit.script(model[0])
    for one in (torch.jit.script(model), torch.jit.trace(model, X), nn.Sequential(part, nn.ReLU())):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        with pytest.raises(CompositionError, match=r"is a .*Module.*script or trace it after close\(\)"):
            relaxcomm.attach(one, optimizer, "bsp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, "bsp"):
        model[0] = part
        model(X).sum().backward()
        with pytest.raises(UsageError, match=r"0 is a RecursiveScriptModule"):
            optimizer.step()


def test_parts_and_wholes_of_an_attached_model_are_refused():
    model, tied = make(), make()
    tied[2].weight = model[2].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, "bsp"):
        for other, name in ((model[0], "weight"), (nn.Sequential(model), "0.0.weight"), (tied, "2.weight")):
            sgd = torch.optim.SGD(other.parameters(), lr=0.1)
            with pytest.raises(UsageError, match=f"{name} belongs to a model to which an engine is attached"):
                relaxcomm.attach(other, sgd, "bsp")
        with relaxcomm.attach(make(), None, "bsp"):  # another model
            pass
        frozen = nn.Sequential(nn.Linear(3, 3), model[0].requires_grad_(False))
        with relaxcomm.attach(frozen, None, "bsp"):  # which nothing exchanges
            pass
    relaxcomm.attach(model, optimizer, "bsp").close()

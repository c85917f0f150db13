"""What `show` says of an algorithm's memory, against the tensors that a run holds."""

from __future__ import annotations

import gc
import inspect

import networkx as nx
import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import topology
from relaxcomm.config import registry
from relaxcomm.config.examples import from_example
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.network.transport import Membership
from relaxcomm.planner.footprint import footprint, footprints, least_and_most, mean_footprint
from relaxcomm.planner.forecast import _memory_of_some
from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.tensors.items import Item
from tests.engine.harness import engine_state
from tests.models import take_step

SIZE, RANKS, STEPS = 48, 4, 4
DATA = torch.utils.data.TensorDataset(
    torch.randn(16 * RANKS, SIZE, generator=torch.Generator().manual_seed(0))
)
SHORT = {"steps": 2, "after_steps": 2}  # so that everything has been exchanged
NUMEL = 4 * SIZE * SIZE
GRAPHS = (topology.complete(), topology.hierarchical(sizes=(2, 2)), topology.ring())


def built(name):
    """The algorithm with what its example has, and a graph that it takes."""
    entry = registry.algorithms()[name]
    known = inspect.signature(entry.build).parameters
    short = {key: value for key, value in SHORT.items() if key in known}
    short |= {"delay": 1} if name == "streaming_diloco" else {}
    taken = from_example(name, entry.build, short)
    algorithm = parse_algorithm({"name": name, **taken, **short})
    for graph in GRAPHS:
        try:
            algorithm.check_topology(graph)
        except relaxcomm.RelaxcommError:
            continue
        return algorithm, graph
    raise AssertionError(f"no graph for {name}")


def make_model():
    return nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(4)))


def trained(group, algorithm, graph, use):
    """What `use` says of a model that has been trained for some steps and of its engine, still attached."""
    model = make_model()
    adam = algorithm.name == "des_loc"
    optimizer = (torch.optim.Adam if adam else torch.optim.SGD)(model.parameters(), lr=1e-3)
    settings = {"algorithm": algorithm, "topology": graph}
    steps = 0
    with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
        for _ in range(STEPS):
            for (x,) in engine.loader(DATA, batch_size=8):
                take_step(model(x).square().mean(), optimizer)
                steps += 1
                if steps == STEPS:
                    return use(model, engine)
    raise AssertionError("an epoch has at least one step")


def said(algorithm, graph):
    """The mean footprint of the ranks."""
    items = [Item(name, p.detach()) for name, p in make_model().named_parameters()]
    found = [footprint(algorithm, items, Membership(rank, RANKS), graph) for rank in range(RANKS)]
    return (sum(getattr(one, part) for one in found) / RANKS for part in ("kept", "buffers", "under_way"))


def saved_bytes(model, engine):
    """Of what a checkpoint holds for the rules."""
    state = engine_state(engine)
    slots = [slot for *_, roles in state["slots"] for made in roles.values() for slot in made.values()]
    slots += [part for *_, service in state["services"] for part in service.values()]
    return sum(slot.nbytes for slot in slots)


@pytest.mark.parametrize("name", sorted(registry.algorithms()))
def test_what_is_kept_is_what_a_checkpoint_holds(name):
    algorithm, graph = built(name)
    kept, _, _ = said(algorithm, graph)
    found = relaxcomm.simulate(lambda group: trained(group, algorithm, graph, saved_bytes), RANKS)
    assert sum(found) / RANKS / NUMEL == pytest.approx(kept, abs=0.02)


def held():
    """All tensors of this process, and the bytes of their memory by its place."""
    gc.collect()
    found = [
        one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter) and not one.is_sparse
    ]
    return found, {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found}


@pytest.mark.every_other("name")
@pytest.mark.parametrize("name", ["bsp", "local_sgd", "topk_sgd", "dgc", "choco_sgd", "qadam", "d_psgd"])
def test_all_is_what_a_run_holds(name):
    algorithm, graph = built(name)
    kept, buffers, under_way = said(algorithm, graph)
    others, before = held()  # kept alive, so that no new tensor takes their memory

    def new(model, engine):
        """Of all ranks, found by the first while the others wait."""
        engine._session.bound.meet("all have trained")
        found = held()[1].items() if engine.world.rank == 0 else ()
        engine._session.bound.meet("all is counted")
        return sum(size for place, size in found if place not in before)

    found = sum(relaxcomm.simulate(lambda group: trained(group, algorithm, graph, new), RANKS))
    seen = found / NUMEL / RANKS - 4  # the models themselves
    late = under_way if algorithm.rules[0].delay else 0.0
    assert seen >= 0.98 * (kept + buffers + late)
    # What is on its way, or the last result, may lie in the network too, which is in this process.
    assert seen <= 1.02 * (kept + buffers) + 1.6 * under_way + 4
    del others


def test_a_hub_among_many_ranks_is_looked_at():
    hub, others = 50, {49, 50, 51}
    wheel = nx.cycle_graph(100)
    wheel.add_edges_from((hub, rank) for rank in range(100) if rank not in others)
    graph, algorithm = topology.from_networkx(wheel), parse_algorithm("d_psgd")
    items = [Item("weight", torch.zeros(1000))]
    found = footprints(algorithm, items, 100, graph)
    assert len(found) < 30
    assert least_and_most(found)[1] == hub
    exact = sum(footprint(algorithm, items, Membership(rank, 100), graph).whole for rank in range(100)) / 100
    assert mean_footprint(found, 100).whole == pytest.approx(exact, rel=0.02)
    (remark,) = _memory_of_some(found, items, 100)
    assert f"what rank 50 needs, the most of the {len(found)} ranks for which it was counted" in remark


@pytest.mark.parametrize("bucket_bytes", [1 << 20, 1 << 26])
def test_a_large_gradient_that_stays_where_it_is_has_no_buffer(bucket_bytes):
    """Of two tensors of 1.2 and 0.1 MB; in one bucket both have one."""

    def allocated(group):
        model = nn.Sequential(nn.Linear(600, 512, bias=False), nn.Linear(512, SIZE, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"algorithm": "bsp", "bucket_bytes": bucket_bytes}
        with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
            model(torch.ones(1, 600)).sum().backward()
            optimizer.step()
            flat = [one.buffer for one in engine._session.step.backward.buckets]
            items = [Item(name, p.detach()) for name, p in model.named_parameters()]
        return sum(one.whole.nbytes for one in flat if isinstance(one, GradientBuffer)), items

    made, items = relaxcomm.simulate(allocated, 2)[0]
    numel = sum(item.tensor.numel() for item in items)
    found = footprint(parse_algorithm("bsp"), items, Membership(0, 2), topology.complete(), bucket_bytes)
    assert found.buffers * numel == pytest.approx(made, rel=0.01)
    assert (made > 4 * 600 * 512) == (bucket_bytes > 1 << 20)

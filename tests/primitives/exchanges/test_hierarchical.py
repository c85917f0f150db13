"""What hierarchical averaging sends where, and that its sums do not overflow."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import primitives, topology
from relaxcomm.network.operations import Neighbors
from relaxcomm.network.transport import Membership
from relaxcomm.plugin import exchange_cost, one_tensor
from relaxcomm.roles import Context

GROUPS = [(2, 3), (3, 1, 2), (1, 1, 1), (4,), (2, 2, 2, 2), (1, 5)]


def averaged(sizes, inputs, compressor, *, exact=False):
    """Run the exchange of all ranks step by step; the results, and each step's bytes from each to each."""
    world, steps = len(inputs), []
    running = []
    for rank, tensor in enumerate(inputs):
        graph = topology.hierarchical(sizes=sizes)
        cx = Context(0, 0, Membership(rank, world), learning_rate=lambda bucket: 0.1, topology=graph)
        cx = cx.at(exact=exact)
        running.append(primitives.hierarchical_all_reduce().run(cx, tensor.clone(), compressor, {}))
    received, results = [None] * world, {}
    while len(results) < world:
        yielded = {}
        for rank, one in enumerate(running):
            try:
                yielded[rank] = one.send(received[rank])
            except StopIteration as stop:
                results[rank] = stop.value
        sent = torch.zeros(world, world)
        for rank, operation in yielded.items():
            assert isinstance(operation, Neighbors)
            for other, tensor in operation.sends.items():
                sent[rank, other] += tensor.numel() * tensor.element_size()
                assert tensor.is_contiguous()
                assert tensor.shape == yielded[other].receives[rank].shape
            received[rank] = {other: yielded[other].sends[rank].clone() for other in operation.receives}
        steps.append(sent)
    return [results[rank] for rank in range(world)], torch.stack(steps[:-1])


@pytest.mark.parametrize("sizes", GROUPS)
@pytest.mark.parametrize("numel", [0, 1, 5, 120])
def test_all_ranks_get_the_same_mean(sizes, numel):
    inputs = list(torch.randn(sum(sizes), numel, generator=torch.Generator().manual_seed(1)))
    results, _ = averaged(sizes, inputs, primitives.identity())
    for result in results:
        torch.testing.assert_close(result, torch.stack(inputs).mean(0))
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("sizes", GROUPS)
def test_no_more_bytes_than_a_ring_and_few_between_groups(sizes):
    world, numel, groups = sum(sizes), 480, len(sizes)
    _, steps = averaged(sizes, [torch.ones(numel) for _ in range(world)], primitives.identity())
    sent = steps.sum(0)
    exchange, graph = primitives.hierarchical_all_reduce(), topology.hierarchical(sizes=sizes)
    declared, around = (
        exchange_cost(one, primitives.identity(), one_tensor(numel), 4, world, graph).sent_bytes
        for one in (exchange, primitives.all_reduce())
    )
    assert sent.sum() / world == pytest.approx(declared)
    assert declared == pytest.approx(around)
    home = torch.repeat_interleave(torch.arange(groups), torch.tensor(sizes))
    for group in range(groups):
        out = sent[home == group][:, home != group].sum()
        assert out == pytest.approx(2 * (groups - 1) / groups * 4 * numel)


@pytest.mark.parametrize("exact", [False, True])
def test_sums_of_groups_travel_in_float32_only_where_means_are_rounded_once(exact):
    inputs, code = [torch.ones(480, dtype=torch.bfloat16)] * 5, primitives.identity()
    exchange, graph = primitives.hierarchical_all_reduce(), topology.hierarchical(sizes=(2, 3))
    _, steps = averaged((2, 3), inputs, code, exact=exact)
    declared = exchange_cost(exchange, code, one_tensor(480), 2, 5, graph, exact=exact).sent_bytes
    assert steps.sum() / 5 == pytest.approx(declared)


@pytest.mark.parametrize(("groups", "size"), [(2, 2), (2, 4), (3, 2), (4, 1)])
def test_all_ranks_of_a_group_send_as_much_to_others_in_each_step(groups, size):
    inputs = [torch.ones(480) for _ in range(groups * size)]
    _, steps = averaged((size,) * groups, inputs, primitives.identity())
    each = (groups - 1) / groups * 4 * 480 / size
    torch.testing.assert_close(steps[1:3].sum(2), torch.full((2, groups * size), each))


def test_sums_do_not_overflow_in_sixteen_bits():
    inputs = [torch.full((7,), 60000.0) for _ in range(5)]
    results, _ = averaged((2, 3), inputs, primitives.cast(dtype="float16"))
    for result in results:
        torch.testing.assert_close(result, inputs[0], rtol=2e-3, atol=0.0)

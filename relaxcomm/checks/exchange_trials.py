"""What exchanges are tried on: ranks in one process, each with a tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.checks.compressor_trials import drawn
from relaxcomm.checks.conduct import WatchedSlots
from relaxcomm.checks.round_trip import bucket_of, context
from relaxcomm.checks.world_sizes import LARGEST
from relaxcomm.errors import TopologyError
from relaxcomm.network import InProcessGroup, simulate
from relaxcomm.network.operations import Label, Neighbors, Operation, Request
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.sign import sign
from relaxcomm.primitives.outers.average import average
from relaxcomm.roles import Compressor, Exchange, Outer
from relaxcomm.roles.exchange import slots_in_run
from relaxcomm.roles.returned import entries
from relaxcomm.tensors.messages import DENSE
from relaxcomm.tensors.unshared import UnsharedState
from relaxcomm.topology import Topology, complete, from_networkx, hierarchical, in_turn

ROUNDS = 60  # in which ranks that mix come together
_SIZES = (2, 3, 4)
_PLACE = ("0", 0)
_AVERAGE = average()

Kinds: TypeAlias = tuple[type[Operation], ...]
"""Those of an exchange's operations, in their order."""


@dataclass(frozen=True)
class Ended:
    """What one rank ends with.

    Args:
        result: its tensor, with what it has still to learn from a service of its own.
        held: the same, with what the exchange says that it holds beside.
        operations: kinds of those that each of its exchanges took.
        sent_to: other ranks to which it sent by itself, each with the number of the operation.
        sent: bytes that it sent in all.
        written: slots that it wrote into in place.
    """

    result: Tensor
    held: Tensor
    operations: frozenset[Kinds]
    sent_to: frozenset[tuple[int, int]]
    sent: int
    written: list[str]


def topology_of(exchange: Exchange, size: int) -> Topology:
    """One that the exchange can use."""
    return hierarchical(sizes=(1,) * (size - 2) + (2,)) if exchange.facts.topology == "groups" else complete()


def takes(exchange: Exchange, size: int, topology: Topology | None = None) -> bool:
    """Whether the exchange works among so many ranks, over a graph or one that suits it."""
    try:
        exchange.check_graph(topology or topology_of(exchange, size), size)
    except TopologyError:
        return False
    return True


def pairs_in_turn(exchange: Exchange, size: int) -> Topology | None:
    """Each rank with one neighbour and then with the other, if the exchange takes graphs that change."""
    import networkx as nx

    turns = [nx.empty_graph(size), nx.empty_graph(size)]
    for rank in range(size - 1):
        turns[rank % 2].add_edge(rank, rank + 1)
    topology = in_turn(topologies=tuple(map(from_networkx, turns)))
    may_change = exchange.facts.topology == "graph" and not exchange.facts.needs_fixed_graph
    uses_it = may_change and exchange.topology_override() is None
    return topology if uses_it and takes(exchange, size, topology) else None


def sizes_of(exchange: Exchange) -> list[int]:
    """Numbers of workers that it is tried with: 2, 3 and 4, or what it takes instead."""
    sizes = [*filter(partial(takes, exchange), _SIZES)]
    return sizes or [next(filter(partial(takes, exchange), range(_SIZES[-1] + 1, LARGEST + 1)), _SIZES[0])]


def size_of(exchange: Exchange) -> int:
    """One of them: 3, which shows what 2 do not, if it takes as many."""
    sizes = sizes_of(exchange)
    return 3 if 3 in sizes else sizes[-1]


def coder_for(exchange: Exchange) -> Compressor:
    """A compressor whose messages the exchange takes."""
    return identity() if DENSE in exchange.facts.accepts else sign()


def mean_of(size: int, put_in: Callable[[int], Tensor] = drawn) -> Tensor:
    """What all ranks put in, on average."""
    return torch.stack([put_in(rank) for rank in range(size)]).mean(0)


def exchanged(
    exchange: Exchange,
    size: int,
    compressor: Compressor | None = None,
    *,
    put_in: Callable[[int], Tensor] = drawn,
    start: Tensor | None = None,
    topology: Topology | None = None,
    steps: int = 1,
    absent: Collection[int] = (),
    divided: bool = False,
    exact: bool = False,
    outer: Outer = _AVERAGE,
    apart: int = 1,
    begun: int = 0,
) -> list[Ended]:
    """What each rank that takes part ends with.

    Args:
        exchange: what is tried.
        size: number of ranks.
        compressor: what encodes; `coder_for` the exchange unless given.
        put_in: what each puts in, `[numel]`; what comes out is put in by the next exchange.
        start: the parameters of all at the beginning; what each puts in unless given.
        topology: the configured one.
        steps: number of exchanges.
        absent: ranks that leave before the first exchange.
        divided: whether what is put in is divided by the number of ranks already.
        exact: whether means are rounded once.
        outer: that its service may apply.
        apart: steps from one exchange to the next.
        begun: the rule's first step.
    """

    compressor = compressor or coder_for(exchange)

    def rank(group: InProcessGroup) -> Ended | None:
        transport, tensor = group.transport(), put_in(group.rank())
        written: list[str] = []
        taken, sent_to = set[Kinds](), set[tuple[int, int]]()
        known = replace(context(group.rank(), size), divided=divided, exact=exact)
        cx = replace(known, topology=topology or topology_of(exchange, size))
        bucket = bucket_of((put_in(group.rank()) if start is None else start).clone())
        state = WatchedSlots(slots_in_run(exchange, bucket, compressor, cx.membership), repr(exchange))
        served = exchange.serve(cx, bucket, compressor, outer)
        if served is not None:
            transport.serve(_PLACE, served.service, served.request, served.reply)
        if group.rank() in absent:
            transport.leave()
            return None
        for number in range(steps):
            now = replace(cx, step=begun + apart * number, start=begun, round=number)
            running = exchange.run(now, tensor, compressor, UnsharedState(state, tensor))
            state.watch()
            received, kinds = None, list[type[Operation]]()
            while True:
                try:
                    operation = next(running) if received is None else running.send(received)
                except StopIteration as stop:
                    result = entries(stop.value, len(tensor), "run", exchange, compressor)
                    tensor = result.to(tensor.dtype)  # which may be wider
                    break
                kinds.append(type(operation))
                sent_to |= {(len(kinds), other) for other in _receivers(operation) if other != group.rank()}
                received = transport.issue(operation, Label(now.step, *_PLACE, len(kinds))).wait()
            written += state.written()
            taken.add(tuple(kinds))
        transport.leave()
        learned = None if served is None else served.service.rest()
        result = tensor if learned is None else tensor + learned
        rest = exchange.rest(state)
        whole = result if rest is None else result + rest
        return Ended(result, whole, frozenset(taken), frozenset(sent_to), transport.counters.sent, written)

    return [one for one in simulate(rank, size) if one is not None]


def _receivers(operation: Operation) -> Iterable[int]:
    """Ranks to which something is sent, where each goes its own way."""
    if isinstance(operation, Neighbors):
        return [rank for rank, tensor in operation.sends.items() if tensor.numel()]
    return operation.asked if isinstance(operation, Request) else ()

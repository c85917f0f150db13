"""Checks of exchanges: bytes, operations and results on simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product

import torch
from torch import Tensor

from relaxcomm.checks.compressor_trials import NUMEL, drawn
from relaxcomm.checks.conduct import expect_assigned, expect_from_start
from relaxcomm.checks.exchange_trials import (
    ROUNDS,
    Ended,
    Kinds,
    coder_for,
    exchanged,
    mean_of,
    pairs_in_turn,
    size_of,
    sizes_of,
    topology_of,
)
from relaxcomm.checks.finding import expect
from relaxcomm.composition.exchange_cost import exchange_cost, pairs_of, stages_of
from relaxcomm.roles import Exchange, Stage
from relaxcomm.tensors.layout import one_tensor
from relaxcomm.tensors.precision import HALVES

_FEW = 12  # entries, beside which a header shows
_SAME = 4  # exchanges that are looked at again
_STEPS = 2  # neighbours, of which every other one may be unlike
_APART = 12  # steps from one exchange to the next: 2, 3 or 4 turns that follow cx.step stay at the first


def traffic_is_declared(exchange: Exchange) -> None:
    """The operations in each exchange, and the bytes on average over ranks and exchanges."""
    for size, numel in product(sizes_of(exchange), (NUMEL, _FEW)):
        _traffic_is_declared(exchange, size, numel, torch.float32)
    _traffic_is_declared(exchange, size_of(exchange), NUMEL, torch.bfloat16)


def _traffic_is_declared(exchange: Exchange, size: int, numel: int, dtype: torch.dtype) -> None:
    """Of entries of a type; means of halves are rounded once, as of parameters."""
    exact = dtype in HALVES
    found = exchanged(
        exchange, size, put_in=lambda rank: drawn(rank, numel=numel).to(dtype), steps=_STEPS, exact=exact
    )
    layout, topology = one_tensor(numel), topology_of(exchange, size)
    stages = stages_of(exchange, size, topology, exact=exact)
    expect_kinds(found, stages, size)
    for number, stage in enumerate(stages, 1):
        pairs = None if stage.pairs is None else set(pairs_of(stage, exchange, size))
        used = {(rank, other) for rank, one in enumerate(found) for at, other in one.sent_to if at == number}
        expect(
            pairs is None or used <= pairs,
            f"declares the pairs {sorted(pairs or ())} of operation {number}, sent over {sorted(used)}, "
            f"(rank, other), on {size} ranks",
        )
    cost = exchange_cost(exchange, coder_for(exchange), layout, dtype.itemsize, size, topology, exact=exact)
    seen = sum(one.sent for one in found) / size / _STEPS
    headers = 0 if exchange.facts.collective else 64 * size  # of answers
    of_type = " in bfloat16" if exact else ""
    expect(
        abs(seen - cost.sent_bytes) <= headers + 0.02 * cost.sent_bytes,
        f"declares {cost.sent_bytes:.0f} bytes for {numel} entries{of_type}, sent {seen:.0f} on {size} ranks",
    )


def expect_kinds(found: Sequence[Ended], stages: Sequence[Stage], size: int) -> None:
    """All ranks take the operations that stages have, in their order."""
    declared = tuple(stage.kind for stage in stages)
    taken = set[Kinds]().union(*(one.operations for one in found))
    seen = " or ".join(sorted(map(_named, taken)))
    expect(taken == {declared}, f"declares the operations {_named(declared)}, took {seen} on {size} ranks")


def _named(kinds: Kinds) -> str:
    """In words: those that follow each other once, with their number."""
    runs = ((kind.__name__, len(list(alike))) for kind, alike in groupby(kinds))
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in runs) or "none"


def results_are_declared(exchange: Exchange) -> None:
    """Ranks that should end with the same tensor do, and a mean is the mean."""
    is_linear, sizes = coder_for(exchange).facts.linear, sizes_of(exchange)
    for size in sizes:
        results = torch.stack([one.result for one in exchanged(exchange, size)])
        if exchange.facts.same_result:
            same = bool((results == results[0]).all())
            expect(same, f"declares the same result on all ranks, but they differ on {size} ranks")
        if is_linear and exchange.facts.returns == "mean":
            off = float((results.mean(0) - mean_of(size)).abs().max())
            expect(
                off < 1e-5,
                f"the mean over {size} ranks moved by {off:.3g}: let the weights with which a rank's message "
                "comes out sum to 1 over all ranks",
            )
    if exchange.facts.returns in ("mean", "robust mean") and not exchange.facts.same_result:
        _come_closer(exchange, sizes[-1])
        if is_linear and exchange.facts.returns == "mean" and exchange.facts.collective:
            _all_mix(exchange, sizes[-1])


def _groups_of(exchange: Exchange, size: int) -> Sequence[Sequence[int]]:
    """The ranks that come together."""
    in_groups = exchange.facts.topology == "groups"
    return topology_of(exchange, size).groups(size) if in_groups else [range(size)]


def _come_closer(exchange: Exchange, size: int) -> None:
    """Ranks that need not end alike mix what they have, in each group, be it slowly."""
    groups = _groups_of(exchange, size)
    found = exchanged(exchange, size, steps=ROUNDS, start=drawn(size))

    def apart(held: Sequence[Tensor]) -> float:
        of_groups = (torch.stack([held[rank] for rank in group]) for group in groups)
        return sum(float((held - held.mean(0)).norm()) for held in of_groups)

    begun, ended = apart([drawn(rank) for rank in range(size)]), apart([one.result for one in found])
    expect(
        ended < 0.98 * begun,
        "exchanges, but ranks do not come closer: what came from others is not in the result; on "
        f"{size} ranks {ended / begun:.1%} of the distance is left after {ROUNDS} exchanges",
    )


def _all_mix(exchange: Exchange, size: int) -> None:
    """What each rank puts in comes to all of its group, if by others, and where graphs change in turn."""
    entries = torch.arange(NUMEL) * size // NUMEL

    def mark(rank: int) -> Tensor:
        return (entries == rank).float()  # in a place of its own

    in_turn = pairs_in_turn(exchange, size)
    otherwise = "" if in_turn is None else ", or, unless pairs may take turns, declare needs_fixed_graph"
    zeros = torch.zeros(NUMEL)
    found = exchanged(exchange, size, steps=ROUNDS, put_in=mark, start=zeros, topology=in_turn, apart=_APART)
    for group in _groups_of(exchange, size):
        for to, begun in product(group, group):
            expect(
                bool(found[to].result[entries == begun].any()),
                f"exchanges, but not all ranks mix: of what rank {begun} puts in nothing comes to rank {to}, "
                f"on {size} ranks in {ROUNDS} exchanges; let turns follow cx.round, which counts exchanges"
                f"{otherwise}",
            )


def repeats_itself(exchange: Exchange) -> None:
    """Of the same tensors it makes the same again, in a rule that begins late, too."""

    def made(begun: int) -> Tensor:
        found = exchanged(exchange, size_of(exchange), steps=_SAME, begun=begun)
        return torch.stack([one.result for one in found])

    expect(
        torch.equal(made(0), made(0)),
        "makes something else of the same tensors when it is asked again: it keeps state in a module, a "
        "class or itself, or draws unseeded; keep it in slots, and draw from cx.generator(seed, device)",
    )
    expect_from_start(made)


def slots_are_assigned(exchange: Exchange) -> None:
    """A slot changes by assignment, also one that follows parameters, which have moved apart."""
    sizes = sizes_of(exchange)
    for size in sizes:
        for one in exchanged(exchange, size, steps=4, start=drawn(sizes[-1])):
            expect_assigned(sorted(set(one.written)))

"""Checks of exchanges: each declared fact against what is seen on simulated ranks."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from relaxcomm.checks import slots_hold
from relaxcomm.checks.compressor_trials import NUMEL, drawn
from relaxcomm.checks.conduct import checks_of
from relaxcomm.checks.exchange_graphs_hold import (
    kept_state_is_declared,
    one_way_links_even_out,
    use_of_topologies_is_declared,
)
from relaxcomm.checks.exchange_trials import (
    ROUNDS,
    exchanged,
    mean_of,
    size_of,
    sizes_of,
    topology_of,
)
from relaxcomm.checks.exchanges_hold import (
    expect_kinds,
    repeats_itself,
    results_are_declared,
    slots_are_assigned,
    traffic_is_declared,
)
from relaxcomm.checks.finding import Broken, expect, told
from relaxcomm.checks.trial_coders import CODERS, in_two_rounds
from relaxcomm.composition.exchange_cost import stages_of
from relaxcomm.errors import CommunicationError
from relaxcomm.primitives.compressors.random_k import random_k
from relaxcomm.primitives.compressors.top_k import top_k
from relaxcomm.primitives.outers.average import average
from relaxcomm.primitives.outers.sgd import sgd
from relaxcomm.roles import Exchange
from relaxcomm.tensors.messages import DENSE, MAXIMUM, SHARED_SUPPORT, SIGNS, SPARSE

_STEPS = 8  # in which each rank has had another as its partner


def accepted_kinds_come_through(exchange: Exchange) -> None:
    """Messages of every kind that it accepts come out as their mean, or as their largest entries."""
    size = size_of(exchange)
    for kind in exchange.facts.accepts:
        coder = CODERS.get(kind)
        if coder is None or (coder.facts.follows_results and not exchange.facts.several_rounds):
            continue
        try:
            results = torch.stack([one.result for one in exchanged(exchange, size, coder)])
        except Exception as error:  # a plug-in may raise anything
            raise Broken(f"declares to accept {kind} messages, but raises {told(error)}") from error
        if kind == MAXIMUM:
            largest = torch.stack([drawn(rank) for rank in range(size)]).amax(0)
            expect(bool((results == largest).all()), "declares to accept maximum messages, returns others")
        elif exchange.facts.returns == "mean" and kind != SIGNS:
            off = float((results.mean(0) - mean_of(size)).abs().max())
            expect(off < 0.05, f"declares to accept {kind} messages, but their mean is {off:.3g} off")


def taking_part_is_declared(exchange: Exchange) -> None:
    """Without the last rank the others go on if each is declared to go on alone, and only then."""
    size = size_of(exchange)
    try:
        exchanged(exchange, size, absent={size - 1}, steps=_STEPS)
        alone = True
    except CommunicationError:
        alone = False
    declared = "collective" if exchange.facts.collective else "that each goes on alone"
    seen = "the others go on without one" if alone else "the others wait for one that has left"
    expect(alone != exchange.facts.collective, f"declares {declared}, but {seen}")


def rounds_are_declared(exchange: Exchange) -> None:
    """A second message follows the first one's result, where that is declared."""
    if not exchange.facts.several_rounds or DENSE not in exchange.facts.accepts:
        return
    size = size_of(exchange)
    try:
        found = exchanged(exchange, size, in_two_rounds())
    except Exception as error:
        raise Broken(f"declares several rounds, but a second message raises {told(error)}") from error
    expect_kinds(found, 2 * [*stages_of(exchange, size, topology_of(exchange, size))], size)


def returns_are_declared(exchange: Exchange) -> None:
    """Votes are as large whatever is put in, a base is where the parameters were, a mean of zeros is zero."""
    size, zeros = size_of(exchange), torch.zeros(NUMEL)
    if exchange.facts.returns == "votes":
        small, large = (
            exchanged(exchange, size),
            exchanged(exchange, size, put_in=lambda rank: 1024 * drawn(rank)),
        )
        same = all(torch.allclose(a.result, b.result, atol=1e-5) for a, b in zip(small, large, strict=True))
        expect(same, "declares votes, but of 1024 times as large tensors it returns others")
        return
    if exchange.facts.follows_parameters:
        return
    begun = mean_of(size)
    found = exchanged(exchange, size, put_in=lambda rank: zeros.clone(), start=begun)
    expected = begun if exchange.facts.returns == "base" else zeros
    off = max(float((one.result - expected).abs().max()) for one in found)
    expect(
        off < 1e-5, f"declares to return a {exchange.facts.returns}, but what comes of zeros is {off:.3g} off"
    )


def robustness_is_declared(exchange: Exchange) -> None:
    """Whatever one worker puts in, each entry stays between those of the others, where that is declared."""
    if exchange.facts.returns != "robust mean":
        return
    size = size_of(exchange)
    others = torch.stack([drawn(rank) for rank in range(1, size)])
    for bad in (1e30, -1e30, math.nan, math.inf, -math.inf):
        put_in = partial(_but_rank_0, bad)
        result = exchanged(exchange, size, put_in=put_in)[0].result
        within = (result >= others.amin(0)) & (result <= others.amax(0))
        expect(bool(within.all()), f"declares a robust mean, but entries of {bad} on one rank move it")


def _but_rank_0(bad: float, rank: int) -> Tensor:
    return drawn(rank) if rank else torch.full((NUMEL,), bad)


def memory_is_declared(exchange: Exchange) -> None:
    """What a message leaves out comes later, so that ranks come together all the same, or it is lost."""
    declared, accepts = exchange.facts.memory != "none", exchange.facts.accepts
    if not accepts & {SPARSE, SHARED_SUPPORT} or not (declared or exchange.facts.returns == "mean"):
        return
    size, start = size_of(exchange), drawn(0)

    def put_in(rank: int) -> Tensor:
        return start + (drawn(rank) if rank else 0)

    coder = top_k(density=0.25) if SPARSE in accepts else random_k(density=0.25)
    found = exchanged(exchange, size, coder, put_in=put_in, start=start, steps=ROUNDS)
    apart = max(float((one.result - mean_of(size, put_in)).norm()) for one in found)
    begun = max(float((put_in(rank) - mean_of(size, put_in)).norm()) for rank in range(size))
    if declared:
        expect(
            apart < 0.05 * begun, f"declares a memory, but {apart / begun:.1%} of the distance is never sent"
        )
        return
    expect(apart >= 0.05 * begun, "declares no memory, but what messages leave out comes later; declare one")


def division_is_declared(exchange: Exchange) -> None:
    """Of what is divided already the sum is the mean, where that is declared."""
    if not exchange.facts.takes_divided:
        return
    size = sizes_of(exchange)[-1]
    found = exchanged(exchange, size, put_in=lambda rank: drawn(rank) / size, divided=True)
    off = max(float((one.result - mean_of(size)).abs().max()) for one in found)
    expect(off < 1e-5, f"declares to take what is divided already, but the mean is {off:.3g} off")


def use_of_outer_is_declared(exchange: Exchange) -> None:
    """Where its service is declared to apply the outer optimizer, the model moves as far as that goes."""
    if exchange.facts.returns != "base":
        expect(not exchange.facts.applies_outer, "declares to apply the outer, but returns no base")
        return
    whole, half = (
        exchanged(exchange, size_of(exchange), start=torch.zeros(NUMEL), outer=outer)
        for outer in (average(), sgd(lr=0.5))
    )
    factor = 0.5 if exchange.facts.applies_outer else 1.0
    off = max(
        float((one.result * factor - other.result).abs().max())
        for one, other in zip(whole, half, strict=True)
    )
    declared = "to apply the outer" if exchange.facts.applies_outer else "to leave the outer to the ranks"
    expect(off < 1e-5, f"declares {declared}, but with one that goes half as far it is {off:.3g} off")


exchange_checks = checks_of(
    {
        "traffic": traffic_is_declared,
        "results": results_are_declared,
        "kinds": accepted_kinds_come_through,
        "taking part": taking_part_is_declared,
        "rounds": rounds_are_declared,
        "returns": returns_are_declared,
        "robustness": robustness_is_declared,
        "topology": use_of_topologies_is_declared,
        "kept state": kept_state_is_declared,
        "one-way links": one_way_links_even_out,
        "memory": memory_is_declared,
        "division": division_is_declared,
        "outer": use_of_outer_is_declared,
        "repeats": repeats_itself,
        "slots": slots_are_assigned,
        "carried": slots_hold.exchange_slots,
    }
)
"""The checks of an exchange, by name."""

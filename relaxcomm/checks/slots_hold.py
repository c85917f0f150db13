"""Checks of what becomes of slots with another number of ranks: as declared, for each that there is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from relaxcomm.checks.compressor_trials import LAYOUTS, NUMEL, coded_beside, drawn, uneven
from relaxcomm.checks.finding import expect
from relaxcomm.checks.round_trip import bucket_of, context, encode_decode, slots
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.compressors.random_k import random_k
from relaxcomm.primitives.outers.sgd import nesterov
from relaxcomm.roles import Compressor, Exchange, Outer, Trigger, VotingTrigger, is_buffer
from relaxcomm.roles.carried import ALIKE, Slots, nested, share_of
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.shards import shard_sizes

_SIZE = 3
_OUTER = nesterov(lr=0.5, momentum=0.5)


def _bucket(value: float = 1.0) -> Bucket:
    return bucket_of(torch.full((NUMEL,), value))


def expect_stated(made: Iterable[str], declared: Collection[str], where: str = "slots") -> None:
    missing = sorted({slot for slot in made if not is_buffer(slot)} - set(declared))
    expect(not missing, f"keeps {missing}, and its facts' {where} do not say what becomes of them")


def expect_equal(states: Sequence[Mapping[str, Tensor]], declared: Slots) -> None:
    for slot in states[0]:
        if declared.get(slot) in ALIKE:
            same = all(torch.equal(states[0][slot], other[slot]) for other in states)
            expect(same, f"declares that all ranks hold the same {slot!r}, but they differ")


def expect_means(states: Sequence[Mapping[str, Tensor]], declared: Slots) -> None:
    """Complain of a slot that should be the mean over ranks of what each has, and is not."""
    for slot in (one for one, how in declared.items() if how == "mean of shares"):
        share = share_of(declared, slot)
        mean = torch.stack([state[share] for state in states]).mean(0)
        same = torch.allclose(states[0][slot], mean, atol=1e-5)
        expect(same, f"declares {slot!r} to be the mean over the ranks of {share!r}, which it is not")


def trigger_slots(trigger: Trigger) -> None:
    """Each slot is declared."""
    votes = trigger.init_vote() if isinstance(trigger, VotingTrigger) else {}
    expect_stated([*trigger.init(_bucket()), *votes], trigger.facts.slots)


def outer_slots(outer: Outer) -> None:
    """Each slot is declared as what all ranks hold, and none alone begins anew but what parameters make."""
    made, others, how = outer.init(_bucket()), outer.init(_bucket(2.0)), outer.facts.slots
    expect_stated(made, how)
    own = {slot: said for slot, said in how.items() if said not in ("equal", "mean", "fresh")}
    expect(
        not own,
        f"declares {own}, but of the same results all ranks keep the same, and those that join would begin "
        "with something else: declare 'equal'",
    )
    fresh = sorted(one for one in made if how.get(one) == "fresh" and torch.equal(made[one], others[one]))
    kept = sorted(slot for slot, said in how.items() if said != "fresh")
    expect(
        not (fresh and kept),
        f"declares to begin {fresh} anew with another number of workers, and to keep {kept}, which have come "
        "of the same results: declare 'equal'",
    )


def compressor_slots(compressor: Compressor) -> None:
    """Each slot is declared; what should be equal is, on workers that saw the same messages."""
    facts, tensors = compressor.facts, (drawn(5), uneven(6))
    for layout in LAYOUTS:
        states = [slots(compressor, one, layout) for one in tensors]
        begun = dict(states[0])
        expect_stated(begun, facts.slots)
        coded_beside(compressor, *tensors, *states, layout=layout)
        expect_equal(states, facts.slots)
        expect_means(states, facts.slots)
    lost = [
        slot
        for slot, how in facts.slots.items()
        if how == "fresh" and slot in begun and not torch.equal(begun[slot], states[0][slot])
    ]
    expect(
        facts.memory != "lossless" or not lost,
        f"declares to lose nothing, and to begin {lost} anew all the same",
    )
    if facts.memory == "leaky" and not facts.follows_results and lost:
        _expect_some_kept(compressor, lost)


def _expect_some_kept(compressor: Compressor, fresh: Collection[str]) -> None:
    """What a message has left out still comes, in silence, when the slots that begin anew have done so."""
    tensor, silence = drawn(5), torch.zeros(NUMEL)
    state = slots(compressor, tensor)
    encode_decode(compressor, tensor, state)
    anew = slots(compressor, tensor)
    anew.update({slot: state[slot].clone() for slot in state if not is_buffer(slot) and slot not in fresh})
    whole, rest = (float(encode_decode(compressor, silence, one, 1)[2].norm()) for one in (state, anew))
    expect(
        rest >= whole / 2,
        f"declares to send later what a message leaves out, and to begin {fresh} anew, after which "
        f"{rest / (whole or 1):.0%} of it comes; declare 'share'",
    )


def exchange_slots(exchange: Exchange) -> None:
    """Each slot lies where it is declared to, and so does what the service exports."""
    facts, membership = exchange.facts, Membership(0, _SIZE)
    coder = error_feedback(compressor=random_k(density=0.5))
    made = {one for one in exchange.coding_slots(_bucket(), coder, membership) if not is_buffer(one)}
    inner = {slot for slot in coder.init(_bucket()) if not is_buffer(slot)}
    parts = {name for index in range(_SIZE) for name in nested(index, dict.fromkeys(inner, "share"))}
    last = {name for name in made if name.startswith(f"{_SIZE}.")}
    expected = {
        "whole": inner,
        "inner": set(nested(0, dict.fromkeys(inner, "share"))),
        "parts": parts,
        "parts and mean": parts | (last or {f"{_SIZE}."}),
    }[facts.coding]
    expect(
        made - facts.slots.keys() == expected,
        f"declares that the compressor's slots lie as {facts.coding!r}, but there are {sorted(made)}",
    )
    expect_stated(exchange.init(_bucket()), facts.slots)
    if facts.follows_parameters:
        kept = sorted(slot for slot, how in facts.slots.items() if how != "fresh")
        expect(not kept, f"declares to follow the parameters, but not that {kept} begin anew with them")
    _check_service(exchange)


def _check_service(exchange: Exchange) -> None:
    exported = []
    for rank in range(_SIZE):
        coder = random_k(density=1.0)
        served = exchange.serve(context(rank, _SIZE), _bucket(), coder, _OUTER)
        if served is not None:
            exported.append(served.service.export())
    declared = exchange.exported(_OUTER)
    for state, size in zip(exported, shard_sizes(NUMEL, _SIZE), strict=False):
        expect_stated(state, declared, "service")
        expect_equal([state, exported[0]], declared)
        for name, value in state.items():
            is_part = list(value.shape) == [size]
            if declared[name] == "part":
                expect(
                    is_part, f"declares {name!r} to be its part of {size} entries, has {list(value.shape)}"
                )

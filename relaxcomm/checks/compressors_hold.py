"""Checks of compressors: messages, bytes, state, and what they do with what is hard to code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relaxcomm.checks.compressor_repeats import expect_nothing_lent_is_kept, expect_same_when_asked
from relaxcomm.checks.compressor_trials import (
    LAYOUTS,
    NUMEL,
    SEVERAL,
    THIN,
    coded_beside,
    drawn,
    hard_inputs,
    named,
)
from relaxcomm.checks.finding import Broken, expect, told
from relaxcomm.checks.round_trip import encode_decode, slots
from relaxcomm.errors import RelaxcommError
from relaxcomm.roles import Compressor, Parts
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import DENSE, MOST_PLACES, Dense, Message, Sparse
from relaxcomm.tensors.precision import wide

_DRAWS = 60
_SHARES = 0.7, 0.2  # weights of two workers; those of push-sum do not sum to 1
_TWO = "two messages with the weights {} and {}".format(*_SHARES)
_RANKS = 3
_STEPS = 8  # of which the first may send less than the others
_BAD = math.nan, math.inf, -math.inf
_SHOWN_STEPS = 3


def messages_are_declared(compressor: Compressor) -> None:
    """Kinds, number and bytes of the messages, the result's form, and that all is so without `keep_sent`."""
    clocked = compressor.facts.follows_clock
    exact = not clocked  # else the most of all steps is declared, of which some are tried
    layouts = (LAYOUTS[0], *map(one_tensor, (7, 13, 1, 0)), SEVERAL, THIN)
    for layout, dtype in (*itertools.product(layouts, [torch.float32]), (LAYOUTS[0], torch.bfloat16)):
        tensor = drawn(layout.numel, layout.numel).to(dtype)
        steps = range(_STEPS if clocked else 1)
        most = max(_bytes_made(compressor, tensor, layout, step) for step in steps)
        declared = compressor.layout_bytes(layout, tensor.element_size())
        fits = most == declared if exact else most <= declared
        expect(fits, f"declares {declared} bytes for {named(layout)} of {dtype}, made {most}")
        if len(layout.shapes) == 1:
            alone = compressor.message_bytes(layout.numel, tensor.element_size())
            expect(alone == declared, f"declares {declared} bytes for {named(layout)}, and also {alone}")
        exact = exact or (layout == LAYOUTS[0] and most == declared)  # they come to the most: others do, too
    for layout in layouts:
        expect_same_when_asked(compressor, layout)
        expect_nothing_lent_is_kept(compressor, layout)


def _bytes_made(compressor: Compressor, tensor: Tensor, layout: Layout, step: int) -> int:
    """Bytes of the messages in a step, which are looked at besides."""
    messages, result, decoded = _coded(compressor, tensor, layout, named(layout), step)
    kinds, rounds = {message.kind for message in messages}, len(messages)
    facts = compressor.facts
    expect(kinds <= facts.kinds, f"declares messages {set(facts.kinds)}, made {kinds}")
    expect(rounds == facts.rounds, f"declares {facts.rounds} rounds, took {rounds}")
    has_places = facts.most_entries > MOST_PLACES and any(type(message) is Sparse for message in messages)
    expect(not has_places, "a Sparse message has int32 places; declare most_entries=MOST_PLACES")
    for name, value in (("result", result), ("what was sent", decoded)):
        same = value.shape == tensor.shape and value.dtype in (tensor.dtype, wide(tensor.dtype))
        form = f"{list(tensor.shape)} {tensor.dtype}"
        expect(same, f"{name} is {list(value.shape)} {value.dtype}, not {form}")
    same = torch.equal(result.to(tensor.dtype), decoded.to(tensor.dtype))
    expect(same, f"alone, of {tensor.dtype}, the result is not what its own messages decode to")
    return sum(message.pack().numel() for message in messages)


def _coded(
    compressor: Compressor, tensor: Tensor, layout: Layout, what: str, step: int = 0
) -> tuple[list[Message], Tensor, Tensor]:
    """The same as `encode_decode`; of what it raises is told at what."""
    try:
        return encode_decode(compressor, tensor, None, step, layout)
    except Exception as error:  # a plug-in may raise anything
        raise Broken(f"{what}: raises {told(error)}") from error


def weights_are_kept(compressor: Compressor) -> None:
    """What comes out is each message's share of the sum, as gossip and servers weigh them."""
    if compressor.facts.rounds > 1:  # where later messages build on a mean
        _sum_is_enough(compressor)
        return
    tensors = drawn(1), drawn(2)
    sent = [encode_decode(compressor, one, rank=rank, size=2)[2].double() for rank, one in enumerate(tensors)]
    result = coded_beside(compressor, *tensors, slots(compressor, tensors[0]), combined=_weighed).double()
    expect(
        torch.allclose(result, _SHARES[0] * sent[0] + _SHARES[1] * sent[1], rtol=1e-2, atol=1e-2),
        f"{_TWO} do not come out as {_SHARES[0]} of one and {_SHARES[1]} of the other",
    )


def _sum_is_enough(compressor: Compressor) -> None:
    """In each round two dense messages with their weights make what one does with as large a share."""
    if compressor.facts.kinds != {DENSE}:
        return

    def summed(messages: list[Message]) -> Parts:
        parts: Any = _weighed(messages)  # dense ones
        return [(0.5, Dense(2 * sum(share * part.tensor for share, part in parts)))]

    tensors = drawn(1), drawn(2)
    for layout in LAYOUTS:

        def coded(combined: Callable[[list[Message]], Parts], layout: Layout = layout) -> Tensor:
            state = slots(compressor, tensors[0], layout)
            return coded_beside(compressor, *tensors, state, layout=layout, combined=combined).double()

        apart, together = coded(_weighed), coded(summed)
        expect(
            torch.allclose(apart, together, rtol=1e-2, atol=1e-2),
            f"{_TWO} do not make what their weighted sum alone makes, in {named(layout)}: weigh the messages "
            "of each round",
        )


def _weighed(messages: list[Message]) -> Parts:
    return list(zip(_SHARES, messages, strict=True))


def values_are_declared(compressor: Compressor) -> None:
    """How many values a message holds that a chain can encode further, and how long each is."""
    for layout, dtype in itertools.product(LAYOUTS, (torch.float32, torch.float16)):
        tensor = drawn(3).to(dtype)
        declared = compressor.layout_values(layout, tensor.element_size())
        if declared is None:
            return
        message = encode_decode(compressor, tensor, layout=layout)[0][0]
        values = message.tensor if isinstance(message, Dense) else getattr(message, "values", tensor[:0])
        made = values.numel(), values.element_size()
        fits = made == declared or (compressor.facts.follows_clock and made <= declared)
        expect(fits, f"declares (values, bytes of each) of {declared} for {named(layout)}, made {made}")


def loss_is_declared(compressor: Compressor) -> None:
    """The contraction bound."""
    bound = compressor.contraction(NUMEL)
    if bound is None:
        return
    tensor, lost = drawn(1), 0.0
    for step in range(_DRAWS):
        _, result, _ = encode_decode(compressor, tensor, None, step, rank=step % _RANKS, size=_RANKS)
        lost += float((result - tensor).square().sum() / tensor.square().sum()) / _DRAWS
    expect(lost <= bound * 1.05 + 1e-6, f"declares to lose {bound:.4g} ||x||^2 at most, lost {lost:.4g}")


def hard_inputs_are_survived(compressor: Compressor) -> None:
    """Finite entries come out finite, in short types too, and what is not finite is never hidden."""
    for layout in (*LAYOUTS, THIN):
        for what, tensor in hard_inputs(layout.numel):
            _is_survived(compressor, tensor, layout, f"{what}, in {named(layout)}")
        _are_shown(compressor, layout)


def _is_survived(compressor: Compressor, tensor: Tensor, layout: Layout, what: str) -> None:
    _, result, decoded = _coded(compressor, tensor, layout, what)
    made, allowed = {result.dtype, decoded.dtype}, {tensor.dtype, wide(tensor.dtype)}
    expect(
        made <= allowed,
        f"{what}: the result is {result.dtype}, what was sent {decoded.dtype}, and not {wide(tensor.dtype)}: "
        "compute in torch.promote_types(tensor.dtype, torch.float32)",
    )
    finite = bool(result.isfinite().all() and decoded.isfinite().all())
    is_short = tensor.itemsize < 4 and layout is not THIN  # few entries may all be left out by chance
    if finite and not (is_short and tensor.any() and not result.any()):
        return
    longer = _coded(compressor, tensor.float(), layout, f"{what}, made float32")[1]
    too_large = bool(longer.isfinite().all() and not longer.to(tensor.dtype).isfinite().all())
    expect(finite or too_large, f"{what}: the result is not finite")
    expect(
        not (finite and longer.any()),
        f"{what}: nothing comes out, though of the same in float32 something does: compute norms and sums of "
        f"squares of tensor.float(), as those of {tensor.dtype} overflow or vanish",
    )


def _are_shown(compressor: Compressor, layout: Layout) -> None:
    """An entry that is not finite is seen at once, also where its place is not one that this step sends."""
    places = 0, layout.numel // 2, layout.numel - 1
    for (index, place), step in itertools.product(enumerate(places), range(_SHOWN_STEPS)):
        tensor = drawn(5, layout.numel)
        tensor[place] = bad = _BAD[(index + step) % len(_BAD)]  # each once in each place and in each step
        try:
            _, result, _ = encode_decode(compressor, tensor, None, step, layout)
        except RelaxcommError:
            continue
        what = f"an entry that is {bad}, in {named(layout)},"
        hidden = bool(result.isfinite().all())
        expect(not hidden, f"{what} comes out as finite numbers, so no rank would notice")

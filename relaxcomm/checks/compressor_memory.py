"""Checks of what a compressor keeps of what its messages have left out, and sends later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.checks.compressor_trials import NUMEL, drawn
from relaxcomm.checks.finding import expect
from relaxcomm.checks.round_trip import encode_decode, slots
from relaxcomm.roles import Compressor

_DRAINED = 3000  # messages after which nothing may be left of what was kept
_LITTLE, _QUIET = 0.01, 8  # of an impulse in a message, and in how many one after the other


def memory_is_declared(compressor: Compressor) -> None:
    """In silence comes what a message has left out, nothing, something, or all of it.

    What adds up results sends how far a tensor is from them, so it is given the same again and not silence.
    """
    facts, tensor, silence = compressor.facts, drawn(2), torch.zeros(NUMEL)
    state = slots(compressor, tensor)
    sent = encode_decode(compressor, tensor, state)[2]
    if facts.memory == "none":
        later = encode_decode(compressor, silence, state, step=1)[2]
        expect(not later.any(), "declares no memory, but something comes in silence")
    elif float((tensor - sent).norm()) > 1e-6 * float(tensor.norm()):
        again = encode_decode(compressor, tensor if facts.follows_results else silence, state, step=1)[2]
        came = again - sent if facts.follows_results else again
        expect(bool(came.any()), "declares a memory, but nothing comes of what a message left out")
    if facts.memory == "lossless" and not facts.unbiased:  # what is unbiased loses nothing on average
        _loses_nothing(compressor, estimates=facts.follows_results)
    if not (facts.memory == "none" or facts.unbiased or facts.follows_results):
        _comes_to_an_end(compressor)
        _grows_no_faster_than_momentum(compressor)


def _loses_nothing(compressor: Compressor, *, estimates: bool) -> None:
    """All of an impulse is sent; what estimates rather than adds up comes to what stays as it is."""
    tensor, silence = drawn(2), torch.zeros(NUMEL)
    state, total, missing = slots(compressor, tensor), torch.zeros(NUMEL), 1.0
    for step in range(_DRAINED):
        sent = encode_decode(compressor, tensor if estimates or not step else silence, state, step)[2]
        total = total + sent
        reached = (total / (step + 1), sent) if estimates else (total,)
        missing = min(_missing(tensor, one) for one in reached)
        if missing < (5e-2 if estimates else 1e-3):
            return
    expect(False, f"declares to lose nothing, but {missing:.1%} was never sent")


def _comes_to_an_end(compressor: Compressor) -> None:
    """What was sent is no longer kept: in silence less and less comes. Momentum may send more than it got."""
    tensor = drawn(2)
    came = _until_silence(compressor, [tensor], float(tensor.norm()))[1]
    expect(
        came < _LITTLE,
        f"still sends {came:.1%} of an impulse {_DRAINED} steps later: what was sent is sent again, "
        "so take it out of what is kept, such as state['residual'] = whole - sent",
    )


def _grows_no_faster_than_momentum(compressor: Compressor) -> None:
    """What waits while larger entries are sent: momentum adds less to it in each step, a factor ever more."""
    tensor, waits = drawn(2), torch.arange(NUMEL) % 50 == 0
    large, size = torch.where(waits, 0.0, 1e4 * tensor.sign()), float(tensor[waits].norm())
    first = encode_decode(compressor, torch.where(waits, tensor, large), slots(compressor, tensor))[2]
    if first[waits].any():  # all is sent at once
        return
    came = []
    for rounds in (0, 4, 8):
        given = [torch.where(waits, tensor, large if rounds else 0.0), *[large] * (rounds - 1)]
        total = _until_silence(compressor, given, size)[0]
        came.append(float((total * tensor.sign())[waits].sum() / tensor[waits].abs().sum()))
    begin, middle, end = came
    expect(
        end - middle <= 1.05 * max(0.0, middle - begin) + 0.05,
        f"of what waits for {0, 4, 8} steps it sends {begin:.3g}, {middle:.3g} and {end:.3g} times as much: "
        "what was left grows ever faster, so add it to the next message once",
    )


def _until_silence(compressor: Compressor, given: Sequence[Tensor], size: float) -> tuple[Tensor, float]:
    """The sum of all that is sent of tensors and in the silence after them; and the norm of the last message
    as a part of `size`."""
    silence = torch.zeros(NUMEL)
    state, total, quiet, came = slots(compressor, silence), torch.zeros(NUMEL), 0, 1.0
    for step in range(_DRAINED):
        sent = encode_decode(compressor, given[step] if step < len(given) else silence, state, step)[2]
        total, came = total + sent, float(sent.norm()) / size
        quiet = quiet + 1 if came < _LITTLE else 0
        if quiet == _QUIET:
            break
    return total, came


def _missing(tensor: Tensor, reached: Tensor) -> float:
    """The part of a tensor that was not reached."""
    return float((tensor.abs() - reached * tensor.sign()).clamp(min=0).sum() / tensor.abs().sum())

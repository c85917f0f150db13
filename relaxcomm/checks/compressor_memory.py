"""Checks of what a compressor keeps of what its messages have left out, and sends later."""

from __future__ import annotations

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
    tensor, silence = drawn(2), torch.zeros(NUMEL)
    state, quiet, came = slots(compressor, tensor), 0, 1.0
    for step in range(_DRAINED):
        sent = encode_decode(compressor, silence if step else tensor, state, step)[2]
        came = float(sent.norm() / tensor.norm())
        quiet = quiet + 1 if came < _LITTLE else 0
        if quiet == _QUIET:
            return
    expect(
        False,
        f"still sends {came:.1%} of an impulse {_DRAINED} steps later: what was sent is sent again, "
        "so take it out of what is kept, such as state['residual'] = whole - sent",
    )


def _missing(tensor: Tensor, reached: Tensor) -> float:
    """The part of a tensor that was not reached."""
    return float((tensor.abs() - reached * tensor.sign()).clamp(min=0).sum() / tensor.abs().sum())

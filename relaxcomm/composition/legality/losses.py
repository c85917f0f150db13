"""Warnings of what compressors lose, or send more than once."""

from __future__ import annotations

import torch

from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionWarning
from relaxcomm.network.transport import ALONE
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.roles import Compressor, Context
from relaxcomm.system.warn import warn
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item

_LARGE = 1 << 20  # entries for which a compressor's loss is asked
_SELDOM = 0.5  # below this share of the entries in a message one waits for longer than two exchanges
_SAMPLE = 1 << 14  # entries for which it is measured
_ROUNDING = 0.01  # the most of ||x||^2 that counts as rounding, which needs no error feedback


def warn_of_losses(rule: RuleParts) -> None:
    """Of what is lost, counts several times, or grows."""
    _warn_of_bias(rule)
    _warn_of_repeats(rule)
    _warn_of_growth(rule)


def _warn_of_bias(rule: RuleParts) -> None:
    """Of what a message leaves out and no later one brings."""
    if rule.exchange.facts.returns == "votes" or rule.exchange.facts.memory != "none":
        return
    lost = rule.compressor.without_memory.contraction(_LARGE)
    if lost is not None and lost <= _ROUNDING:
        return
    sends_moves = rule.payload.facts.is_move or rule.exchange.facts.follows_parameters
    if not (sends_moves or rule.compressor.without_memory.facts.unbiased):
        warn(
            f"{rule.payload!r} are points, of which {rule.compressor!r} loses a part, and then the model "
            "loses it, too; use the payload deltas() with error_feedback, or the exchange choco_gossip",
            CompositionWarning,
        )
    elif not rule.compressor.facts.unbiased and rule.compressor.facts.memory == "none":
        stays = rule.payload.facts.is_move and rule.payload.facts.keeps_local
        warn(
            f"{rule.compressor!r} loses a part of what it codes for good, so training may stall; "
            f"put it inside {'ef21' if stays else 'error_feedback'}",
            CompositionWarning,
        )


def _warn_of_repeats(rule: RuleParts) -> None:
    """Of a residual of what the payload tells anew until it is sent; ef21 keeps an estimate of it instead."""
    payload, compressor = rule.payload.facts, rule.compressor
    if not (payload.is_move and payload.keeps_local) or compressor.facts.follows_results:
        return
    sent = compressor.without_memory.values(_LARGE, 4)
    if compressor.facts.memory != "none" and sent is not None and sent[0] < _SELDOM * _LARGE:
        warn(
            f"{rule.payload!r} tells how far apart a worker and the others still are, and {compressor!r} "
            "adds that up in each exchange until it is sent, so one distance counts several times and "
            "training may diverge; put its inner compressor inside ef21",
            CompositionWarning,
        )


def _warn_of_growth(rule: RuleParts) -> None:
    """Of a residual that grows without bound, as coding it leaves a larger one.

    A bound above 1 alone does not say so: it is that of the worst entries, which residuals are not.
    """
    compressor, coder = rule.compressor, rule.compressor.without_memory
    bound = coder.contraction(_LARGE)
    if compressor.facts.memory == "none" or bound is None or bound <= 1 or coder.facts.rounds > 1:
        return
    kept = compressor.decay**2 if isinstance(compressor, error_feedback) else 1.0
    if kept * (loss := _usual_loss(coder)) > 1:
        instead = "use it alone, as it is unbiased, or take" if coder.facts.unbiased else "take"
        warn(
            f"{compressor!r} keeps what a message leaves out, which for {coder!r} is {loss:.3g} ||x||^2 of "
            "normally distributed entries: more than it is given, so the residual grows without bound; "
            f"{instead} more levels or entries",
            CompositionWarning,
        )


def _usual_loss(coder: Compressor) -> float:
    """`||C(x) - x||^2 / ||x||^2` of normally distributed entries."""
    x = torch.randn(_SAMPLE, generator=torch.Generator().manual_seed(0))
    bucket = Bucket(0, [Item("x", x)])
    cx = Context(0, 0, ALONE, lambda bucket: 0.1, layout=bucket.layout)
    coding = coder.encode_decode(cx, x.clone(), dict(coder.init(bucket)), keep_sent=False)
    result, _ = finish(coding, [(1.0, next(coding))])
    return float((result - x).square().sum() / x.square().sum())

"""Warnings of what compressors lose, or send more than once."""

from __future__ import annotations

from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionWarning
from relaxcomm.system.warn import warn

_LARGE = 1 << 20  # entries for which a compressor's loss is asked
_SELDOM = 0.5  # below this share of the entries in a message one waits for longer than two exchanges
_ROUNDING = 0.01  # the most of ||x||^2 that counts as rounding, which needs no error feedback


def warn_of_bias(rule: RuleParts) -> None:
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


def warn_of_repeats(rule: RuleParts) -> None:
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

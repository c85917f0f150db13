"""SelSync: exchange only when the gradients change."""

from __future__ import annotations

from typing import Literal

from relaxcomm import (
    Agreement,
    Algorithm,
    Rule,
    Share,
    Steps,
    Threshold,
    all_reduce,
    gradients,
    parameters,
    relative_gradient_change,
)


def selsync(
    threshold: Threshold = 0.25,
    window_steps: Steps = 25,
    smoothing: Share | None = None,
    agree: Agreement = "any",
    aggregate: Literal["parameters", "gradients"] = "parameters",
) -> Algorithm:
    """Selective synchronisation."""
    trigger = relative_gradient_change(
        threshold=threshold, window_steps=window_steps, smoothing=smoothing, agree=agree
    )
    payload = parameters() if aggregate == "parameters" else gradients()
    return Algorithm((Rule(trigger=trigger, payload=payload, exchange=all_reduce()),), name="selsync")

"""What a backward may not do, and what to do instead."""

from __future__ import annotations

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import UsageError


def second_backward_error(step: int, algorithm: Algorithm) -> UsageError:
    """Two backwards of one step exchange, and the algorithm keeps state or delays."""
    return UsageError(
        f"a second synchronising backward in step {step}: {algorithm!r} keeps "
        "state or delays, so exchanging twice is not the same as exchanging the sum; accumulate "
        "under engine.no_sync() and leave it for the last backward. Where the loss of another model "
        "reaches this one (a GAN's generator's the discriminator), run that backward under this "
        "engine's no_sync(), or with requires_grad_(False) here"
    )


def taken_away_error(name: str) -> UsageError:
    """A gradient has come and is gone."""
    return UsageError(
        f"the gradient of {name} was taken away in the backward that has made it, before it was "
        "exchanged, as by an optimizer that steps inside backward; step after backward, or pass "
        "those optimizers to attach with an algorithm that exchanges parameters, such as local_sgd"
    )

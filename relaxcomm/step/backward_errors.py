"""What a backward may not do, and what to do instead."""

from __future__ import annotations

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import UsageError
from relaxcomm.roles import VotingTrigger

_INSTEAD = (
    "accumulate under engine.no_sync() and leave it for the last backward; to give up a batch after its "
    "backward, call optimizer.zero_grad() and then optimizer.step() all the same, which changes nothing"
)


def second_backward_error(step: int, algorithm: Algorithm) -> UsageError:
    """Two backwards of one step exchange, and the algorithm does not add them up."""
    return UsageError(
        f"a second synchronising backward in step {step}: {algorithm!r} keeps "
        "state, delays, or makes something of gradients, so exchanging twice is not the same as exchanging "
        f"the sum; {_INSTEAD}. Where the loss of another model reaches this one (a GAN's generator's the "
        "discriminator), run that backward under this engine's no_sync(), or with requires_grad_(False) here"
    )


def second_vote_error(step: int, trigger: VotingTrigger) -> UsageError:
    """Two backwards of one step exchange, and the first one was voted on."""
    return UsageError(
        f"a second synchronising backward in step {step}: {trigger!r} has voted on the first one; {_INSTEAD}"
    )


def taken_away_error(name: str) -> UsageError:
    """A gradient has come and is gone."""
    return UsageError(
        f"the gradient of {name} was taken away in the backward that has made it, before it was "
        "exchanged, as by an optimizer that steps inside backward; step after backward, or pass "
        "those optimizers to attach with an algorithm that exchanges parameters, such as local_sgd"
    )

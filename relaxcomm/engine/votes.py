"""Triggers whose answer is known after backward: in each step the ranks agree on them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relaxcomm.engine.slots import Slots
from relaxcomm.errors import NonFiniteError, UsageError
from relaxcomm.operations import Agree, Label
from relaxcomm.protocol import Context, Observation, VotingTrigger, agreed
from relaxcomm.transport.base import Pending

if TYPE_CHECKING:
    from relaxcomm.engine.run import Run


class Votes:
    """One ballot a step for all voting triggers; equal triggers share a vote.

    The ballot is cast when backward has ended and read when the answer is first needed, so that the
    optimizer's step hides the round trip where parameters are exchanged after it.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        voting = (rule.trigger for rule in run.algorithm.rules)
        self.slots = {t: Slots(t.init_vote()) for t in voting if isinstance(t, VotingTrigger)}
        self._cast: tuple[VotingTrigger, ...] = ()
        self._pending: Pending | None = None
        self._finite = True
        self._decided: dict[VotingTrigger, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.slots)

    def due(self) -> bool:
        """Whether a ballot is cast in this step, the same on all ranks."""
        return bool(self._active())

    def cast(self, *, abstain: bool = False) -> None:
        """Look at the gradients as they are now and send this rank's ballot; a shadow abstains."""
        active = self._active()
        if not active:
            return
        if self._pending is not None or self._decided:
            raise UsageError(
                f"a second synchronising backward in step {self._run.step}: {active[0]!r} has voted on the "
                "first one; accumulate under engine.no_sync() and leave it for the last backward"
            )
        observation = Observation(self._gradients(), self._run.scale())
        self._finite = math.isfinite(observation.squared_norm)
        ballot = torch.zeros(2 + len(active), dtype=torch.float64)
        if not self._finite:
            ballot[1] = 1
        elif not abstain:
            ballot[0] = 1
            for place, trigger in enumerate(active):
                ballot[2 + place] = trigger.vote(self._context(trigger), self.slots[trigger], observation)
        self._run.synchronised = True
        self._cast = active
        self._pending = self._run.transport.issue(Agree(ballot, "sum"), Label(self._run.step, "vote"))

    def decided(self, trigger: VotingTrigger) -> bool:
        """What the ranks have agreed on in this step.

        Raises: NonFiniteError on all ranks if one has seen a gradient that is not finite.
        """
        if self._pending is not None:
            self._read()
        if trigger not in self._decided:
            raise UsageError(
                f"optimizer.step() in step {self._run.step} without a synchronising backward, so "
                f"{trigger!r} had no gradient to vote on; run each step's last backward outside no_sync()"
            )
        return self._decided[trigger]

    def close(self) -> None:
        """The step has ended."""
        if self._pending is not None:
            self._read()
        self._decided = {}

    def _read(self) -> None:
        assert self._pending is not None
        with self._run.statistics.waiting():
            total = self._pending.wait()
        self._pending = None
        assert isinstance(total, Tensor)
        voters, spoilt, *yes = total.tolist()
        good = self._finite and (not spoilt or self._run.scaler is not None)
        for trigger, count in zip(self._cast, yes, strict=True):
            self.slots[trigger].commit(good)
            self._decided[trigger] = agreed(trigger.agree, count, voters)
        if spoilt and self._run.scaler is None:
            raise NonFiniteError(self._spoilt())

    def _spoilt(self) -> str:
        names = [p.name for p in self._run.parameters if not _is_finite(p.tensor.grad)]
        where = f"here, of {', '.join(names[:3])}" if names else "on another rank"
        return (
            f"step {self._run.step}: the gradients hold NaN or infinity ({where}), so the ranks cannot vote; "
            "nothing of this step was exchanged. Lower the learning rate or clip gradients; if a GradScaler "
            "is used, pass it: attach(..., scaler=scaler)"
        )

    def _active(self) -> tuple[VotingTrigger, ...]:
        rules = [rule for rule in self._run.algorithm.rules if rule.is_active(self._run.step)]
        return tuple(t for t in self.slots if any(rule.trigger == t for rule in rules))

    def _context(self, trigger: VotingTrigger) -> Context:
        return self._run.context(next(rule for rule in self._run.algorithm.rules if rule.trigger == trigger))

    def _gradients(self) -> list[Tensor]:
        return [p.tensor.grad for p in self._run.parameters if p.tensor.grad is not None]


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(torch.isfinite(gradient).all())

"""Triggers whose answer is known after backward: in each step the ranks agree on them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relaxcomm.engine.finite import GRADIENT, is_finite, non_finite_error
from relaxcomm.engine.slots import Slots
from relaxcomm.errors import UsageError
from relaxcomm.network.operations import Agree, Label
from relaxcomm.network.transport import Pending
from relaxcomm.roles import Context, Observation, VotingTrigger, agreed

if TYPE_CHECKING:
    from relaxcomm.engine.run import Run


@dataclass(frozen=True)
class _Ballot:
    """Votes on their way.

    Args:
        step: in which they were cast.
        triggers: that were voted on, in order.
        pending: brings how many voters there are, how many saw what is not finite, and each trigger's yeses.
        finite: whether this rank's gradients were.
        spoilt: which of them were not.
    """

    step: int
    triggers: tuple[VotingTrigger, ...]
    pending: Pending
    finite: bool
    spoilt: tuple[str, ...]


class Votes:
    """One ballot a step for all voting triggers; equal triggers share a vote.

    The ballot is cast when backward has ended and read when the answer is first needed, so that the
    optimizer's step hides the round trip where parameters are exchanged after it, or so many steps as the
    trigger's `vote_delay` says.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        voting = (rule.trigger for rule in run.algorithm.rules)
        self.slots = {t: Slots(t.init_vote()) for t in voting if isinstance(t, VotingTrigger)}
        self._out: deque[_Ballot] = deque()
        self._answers: dict[tuple[VotingTrigger, int], bool] = {}  # by the step of the votes
        self._last: int | None = None  # step in which votes were cast

    def __bool__(self) -> bool:
        return bool(self.slots)

    def due(self) -> bool:
        """Whether a ballot is cast in this step, the same on all ranks."""
        return bool(self._active())

    def cast(self, *, abstain: bool = False) -> None:
        """Look at the gradients as they are now and send this rank's ballot; a shadow abstains."""
        active, step = self._active(), self._run.step
        if not active:
            return
        if self._last == step:
            raise UsageError(
                f"a second synchronising backward in step {step}: {active[0]!r} has voted on the "
                "first one; accumulate under engine.no_sync() and leave it for the last backward"
            )
        observation = Observation(self._gradients(), self._run.scale(), self._run.statistics.latest)
        finite = math.isfinite(observation.squared_norm)
        ballot = torch.zeros(2 + len(active), dtype=torch.float64)
        if not finite:
            ballot[1] = 1
        elif not abstain:
            ballot[0] = 1
            for place, trigger in enumerate(active):
                ballot[2 + place] = trigger.vote(self._context(trigger), self.slots[trigger], observation)
        for trigger in active:
            if trigger.vote_delay:  # the next vote comes before this one is counted
                self.slots[trigger].commit(finite)
        self._run.synchronised = True
        pending = self._run.transport.issue(Agree(ballot, "sum"), Label(step, "vote"))
        self._out.append(_Ballot(step, active, pending, finite, () if finite else self._spoilt()))
        self._last = step

    def decided(self, trigger: VotingTrigger) -> bool:
        """What the ranks have agreed on for this step; before the first votes count, to exchange.

        Raises: NonFiniteError on all ranks if one has seen a gradient that is not finite.
        """
        step = self._run.step
        if self._last != step:
            raise UsageError(
                f"optimizer.step() in step {step} without a synchronising backward, so "
                f"{trigger!r} had no gradient to vote on; run each step's last backward outside no_sync()"
            )
        asked = step - trigger.vote_delay
        while self._out and self._out[0].step <= asked:
            self._read()
        return self._answers.get((trigger, asked), True)

    def close(self) -> None:
        """The step has ended: what decided in it is done with."""
        step = self._run.step
        while self._out and any(self._out[0].step + t.vote_delay <= step for t in self._out[0].triggers):
            self._read()
        self._answers = {
            (trigger, cast): answer
            for (trigger, cast), answer in self._answers.items()
            if cast + trigger.vote_delay > step
        }

    def drain(self) -> None:
        """Wait for all votes, and forget them: the next steps exchange as the first ones do."""
        self._read_all()
        self._answers, self._last = {}, None

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps: the slots, and answers whose step has not come yet."""
        self._read_all()
        order = list(self.slots)
        answers = [[order.index(trigger), cast, answer] for (trigger, cast), answer in self._answers.items()]
        return {"slots": [slots.export() for slots in self.slots.values()], "answers": answers}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on where a run was that has exported this."""
        self.drain()
        for slots, values in zip(self.slots.values(), saved["slots"], strict=True):
            slots.restore(values)
        order = list(self.slots)
        self._answers = {(order[index], cast): answer for index, cast, answer in saved["answers"]}

    def _read_all(self) -> None:
        while self._out:
            self._read()

    def _read(self) -> None:
        """Count the oldest ballot."""
        ballot = self._out.popleft()
        with self._run.statistics.waiting():
            total = ballot.pending.wait()
        assert isinstance(total, Tensor)
        voters, spoilt, *yes = total.tolist()
        good = ballot.finite and (not spoilt or self._run.scaler is not None)
        for trigger, count in zip(ballot.triggers, yes, strict=True):
            if not trigger.vote_delay:
                self.slots[trigger].commit(good)
            self._answers[trigger, ballot.step] = agreed(trigger.agree, count, voters)
        if spoilt and self._run.scaler is None:
            so = "the ranks cannot vote, and nothing of this step was exchanged"
            raise non_finite_error(self._run.transport, ballot.spoilt, (), ballot.step, so=so)

    def _spoilt(self) -> tuple[str, ...]:
        """Which of this rank's gradients are not finite, when together they are not."""
        named = tuple(
            f"{GRADIENT} {p.name}"
            for p in self._run.parameters
            if p.tensor.grad is not None and not is_finite(p.tensor.grad)
        )
        return named or ("gradients whose squares overflow",)

    def _active(self) -> tuple[VotingTrigger, ...]:
        rules = [rule for rule in self._run.algorithm.rules if rule.is_active(self._run.step)]
        return tuple(t for t in self.slots if any(rule.trigger == t for rule in rules))

    def _context(self, trigger: VotingTrigger) -> Context:
        return self._run.context(next(rule for rule in self._run.algorithm.rules if rule.trigger == trigger))

    def _gradients(self) -> list[Tensor]:
        return [p.tensor.grad for p in self._run.parameters if p.tensor.grad is not None]

"""Triggers whose answer is known after backward: in each step the ranks vote on them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from relaxcomm.errors import UsageError
from relaxcomm.network.operations import Label
from relaxcomm.replica.gradient_buffer import check_dense
from relaxcomm.replica.replica import Replica
from relaxcomm.roles import Context, Observation, VotingTrigger, agreed
from relaxcomm.roles.returned import is_yes
from relaxcomm.step.agreements import Agreements, Answer
from relaxcomm.step.backward_errors import second_vote_error
from relaxcomm.step.finite import GRADIENT, non_finite_error
from relaxcomm.step.kept_slots import Slots
from relaxcomm.step.world import World
from relaxcomm.tensors.finiteness import is_finite


@dataclass(frozen=True)
class _Ballot:
    """Votes on their way.

    Args:
        step: in which they were cast.
        triggers: that were voted on, in order.
        answer: how many voters there are, how many saw what is not finite, and each trigger's yeses.
        not_finite: which of this rank's gradients are not.
    """

    step: int
    triggers: tuple[VotingTrigger, ...]
    answer: Answer
    not_finite: tuple[str, ...]


class Votes:
    """One ballot a step for all voting triggers; equal triggers share a vote.

    The ballot is cast when backward has ended and read when the answer is first needed, so that the
    optimizer's step hides the round trip where parameters are exchanged after it, or so many steps as the
    trigger's `vote_delay` says.

    Args:
        triggers: on which the ranks vote.
        replica: whose gradients they look at.
        world: the ranks.
        agreements: that carry the ballots.
    """

    def __init__(
        self, triggers: Sequence[VotingTrigger], replica: Replica, world: World, agreements: Agreements
    ) -> None:
        self._replica, self._world, self._agreements = replica, world, agreements
        self.slots = {trigger: Slots(trigger.init_vote(), repr(trigger)) for trigger in triggers}
        self._out: deque[_Ballot] = deque()
        self._answers: dict[tuple[VotingTrigger, int], bool] = {}  # by the step of the votes
        self._last: int | None = None  # step in which votes were cast

    def __bool__(self) -> bool:
        return bool(self.slots)

    def cast(self, contexts: Mapping[VotingTrigger, Context], step: int, *, abstain: bool) -> None:
        """Look at the gradients as they are now, and ask with this rank's ballot; a shadow abstains.

        Args:
            contexts: of the triggers that are active.
            step: the clock.
            abstain: whether this rank has no gradients of its own.
        """
        active = tuple(contexts)
        if self._last == step:
            raise second_vote_error(step, active[0])
        parameters = self._replica.parameters
        check_dense(parameters)
        gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
        latest = self._world.statistics.latest
        observation = Observation(gradients, self._replica.scale.number(), latest, self._whole_norm)
        finite = math.isfinite(observation.squared_norm)
        ballot = torch.zeros(2 + len(active), dtype=torch.float64)
        if not finite:
            ballot[1] = 1
        elif not abstain:
            ballot[0] = 1
            for index, trigger in enumerate(active):
                vote = trigger.vote(contexts[trigger], self.slots[trigger], observation)
                ballot[2 + index] = is_yes(vote, "vote", trigger)
        for trigger in active:
            if trigger.vote_delay:  # the next vote comes before this one is counted
                self.slots[trigger].commit(finite)
        answer = self._agreements.ask("vote", ballot)
        self._out.append(_Ballot(step, active, answer, () if finite else self._not_finite()))
        self._last = step

    def leave_out(self, step: int) -> None:
        """Have the optimizers do nothing where this step's gradients are not finite: the others learn of it
        only after their own step, or later, and a GradScaler would skip it.
        """
        if not self._out or self._replica.scaler is not None:
            return
        if any(one.step == step and one.not_finite for one in self._out):
            self._replica.clear_gradients()

    def read(self, triggers: Sequence[VotingTrigger], step: int) -> None:
        """Have the answers for this step; waits for ballots that have not come.

        Raises: UsageError if none was cast in this step; NonFiniteError on all ranks if one has seen a
            gradient that is not finite.
        """
        for trigger in triggers:
            if self._last != step:
                raise UsageError(
                    f"optimizer.step() in step {step} without a synchronising backward, so "
                    f"{trigger!r} had no gradient to vote on; run each step's last backward outside no_sync()"
                )
            while self._out and self._out[0].step <= step - trigger.vote_delay:
                self._count()

    def decided(self, trigger: VotingTrigger, step: int) -> bool | None:
        """What the ranks have voted for in a step; before the first votes count, to exchange."""
        cast = step - trigger.vote_delay
        if any(ballot.step == cast for ballot in self._out):
            return None
        return self._answers.get((trigger, cast), True)

    def close(self, step: int) -> None:
        """The step has ended: what decided in it is done with."""
        while self._out and any(self._out[0].step + t.vote_delay <= step for t in self._out[0].triggers):
            self._count()
        self._answers = {
            (trigger, cast): answer
            for (trigger, cast), answer in self._answers.items()
            if cast + trigger.vote_delay > step
        }

    def drain(self) -> None:
        """Wait for all votes, and forget them: the next steps exchange as the first ones do."""
        self._count_all()
        self._answers = {}

    def abort(self) -> None:
        """Votes under way count no more; those of the step that is left may be cast again."""
        for ballot in self._out:
            ballot.answer.read()
        self.give_up()
        self._last = None

    def give_up(self) -> None:
        """Forget the votes that are on their way, and what was not kept yet."""
        self._out.clear()
        for slots in self.slots.values():
            slots.commit(False)

    def take_along(self, before: Votes) -> None:
        """Keep what the same triggers have kept before."""
        for trigger, slots in self.slots.items():
            slots.restore(before.slots[trigger].export())

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps: the slots, and answers whose step has not come yet."""
        self._count_all()
        order = list(self.slots)
        answers = [[order.index(trigger), cast, answer] for (trigger, cast), answer in self._answers.items()]
        return {"slots": [slots.export() for slots in self.slots.values()], "answers": answers}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on where a run was that has exported this."""
        for slots, values in zip(self.slots.values(), saved["slots"], strict=True):
            slots.restore(values)
        order = list(self.slots)
        self._answers = {(order[index], cast): answer for index, cast, answer in saved["answers"]}

    def _whole_norm(self, squared: float) -> float:
        """The squared norm of the whole replica, from that of this rank's shards."""
        label = Label(self._last or 0, "the norm of a replica's gradients")
        return self._world.over_shards(torch.tensor([squared], dtype=torch.float64), label).item()

    def _count_all(self) -> None:
        while self._out:
            self._count()

    def _count(self) -> None:
        """Count the oldest ballot."""
        ballot = self._out.popleft()
        voters, not_finite, *yes = ballot.answer.read().tolist()
        scaler = self._replica.scaler
        good = not ballot.not_finite and (not not_finite or scaler is not None)
        for trigger, count in zip(ballot.triggers, yes, strict=True):
            if not trigger.vote_delay:
                self.slots[trigger].commit(good)
            self._answers[trigger, ballot.step] = agreed(trigger.agree, count, voters)
        if not_finite and scaler is None:
            so = "the ranks cannot vote, and no optimizer has stepped by such gradients"
            raise non_finite_error(self._world, ballot.not_finite, (), ballot.step, so=so)

    def _not_finite(self) -> tuple[str, ...]:
        """Which of this rank's gradients are not finite, when together they are not."""
        named = tuple(
            f"{GRADIENT} {p.name}"
            for p in self._replica.parameters
            if (gradient := p.grad) is not None and not is_finite(gradient)
        )
        return named or ("gradients whose squares overflow",)

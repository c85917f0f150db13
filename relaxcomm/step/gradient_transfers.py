"""The gradient rules of one bucket in one step."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

import torch
from torch import Tensor

from relaxcomm.replica.gradient_buffer import flag_used
from relaxcomm.step.bound import Bound
from relaxcomm.step.device_flags import PutIn
from relaxcomm.step.finite import GRADIENT, named, spoilt
from relaxcomm.step.firing import Firings
from relaxcomm.step.flight import Pipeline, Program
from relaxcomm.step.frozen_since import (
    HeldBack,
    clear_frozen,
    hold_residuals_back,
    put_residuals_back,
    trained_flags,
)
from relaxcomm.step.late_gradients import LateGradients
from relaxcomm.step.state import RuleState
from relaxcomm.step.transfer import Transfer
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import is_finite


class GradientTransfers:
    """Exchanges the gradients of a bucket: rules that act in the same step take turns on one buffer.

    Args:
        bucket: of parameters.
        bound: the algorithm on a model.
        debug: whether NaN is looked for where nothing is kept that it would spoil, too.
    """

    def __init__(self, bucket: Bucket, bound: Bound, *, debug: bool) -> None:
        self.bucket, self._bound = bucket, bound
        self.buffer = bound.plan.gradients_of(bucket)
        self._firings = Firings(bucket, bound, debug=debug)
        self._clock, self._controllers = bound.clock, bound.controllers
        self._names_ranks = bound.replica.scaler is None  # where NaN arose; a scaler skips such gradients
        self._on_gpu = bucket.device.type == "cuda"
        self._factor = None if bound.world.size == 1 else 1 / bound.world.size
        self._all = torch.ones(len(bucket.items), dtype=torch.float32, device=bucket.device)
        self.late = LateGradients(bucket, self.buffer, bound)
        """The gradients that come in other steps."""
        self.begin(())

    def begin(self, fired: Collection[int]) -> bool:
        """A backward begins, in which so many rules fire; whether the bucket has anything to do."""
        self._ran: list[Transfer] = []
        self._held: list[tuple[RuleState, HeldBack]] = []
        self._moved = False
        self._observed: list[Tensor] = []
        self._is_finite: bool | None = None
        self.not_finite: list[str] = []
        self.put_in: list[PutIn] = []
        self.trained = self._all
        self.is_guarded = self.ran_apart = False
        self.buffer.expect_all()
        return self.fire(fired) or bool(self.late.due())

    def fire(self, fired: Collection[int]) -> bool:
        """Let these rules exchange now; whether any covers the bucket."""
        self.firing = self._firings.of(fired)
        return bool(self.firing.tasks)

    def take(self, index: int) -> None:
        """A large gradient has come, by its index in the bucket."""
        if self.firing.tasks:
            self.buffer.take(index, self._factor if self.firing.divided else None)

    def launch(self, pipeline: Pipeline, missing: Set[str]) -> bool:
        """Collect the gradients and issue the first operation; whether there is anything to exchange.

        Args:
            pipeline: of other buckets.
            missing: parameters that have got no gradient in this backward.
        """
        firing, due = self.firing, self.late.due()
        if not firing.tasks and not due:
            return False
        self.buffer.collect(self._factor if firing.divided else None, missing)
        if not firing.carries_flags:
            self.trained = trained_flags(self.bucket, self.buffer.views, self._all)
        # The exchange overwrites it, so later nobody could say on which rank it arose.
        found: Sequence[str] | PutIn = ()
        if self._names_ranks and firing.guarded:
            if self._on_gpu:
                found = PutIn.of(named(self.bucket, GRADIENT), self.buffer.views)
            else:
                found = spoilt(self.bucket, self.buffer.main, GRADIENT)
        transfers = [
            Transfer.of(self._bound, task, round=self._bound.state.next_round(task)) for task in firing.tasks
        ]
        late = [transfer for transfer in transfers if transfer.task.rule.delay]
        self._moved = self._moved or bool(due) or firing.moves
        if late:
            self.late.send(late[0], found)
        elif transfers:
            self._note(found)
            transfers[0].launch(self._program(transfers, divided=firing.divided), self._clock.step, pipeline)
        self._ran += transfers
        self.is_guarded, self.ran_apart = self.is_guarded or firing.guarded, self.ran_apart or firing.apart
        return True

    def used_here(self) -> Tensor:
        """Which parameters have a gradient here, 1 or 0 each; the buffer's own flags may be on their way."""
        return flag_used(torch.empty_like(self._all), self.buffer.unused) if self.buffer.unused else self._all

    def settle_frozen(self, trained: Tensor) -> None:
        """Move nothing that no rank trains, and keep what is left to send of it.

        Args:
            trained: 0 where none does, `[len(bucket.items)]`.
        """
        clear_frozen(self.bucket, self.buffer.views, trained)
        for slots, held in self._held:
            put_residuals_back(slots, held, trained)
        self._held = []

    def land_late(self) -> None:
        """Put the gradient that is due in the place of this step's own, or zeros while none is due."""
        due = self.late.due()
        if self.firing.sends_late:
            self.buffer.main.zero_()
        if self.firing.sends_late or due:
            self._is_finite = None
        for late in due:
            self._ran.append(late)
            self.is_guarded = True
            self.ran_apart = self.ran_apart or not late.task.rule.exchange.facts.same_result
            self._note(late.put_in or late.not_finite)
            self.buffer.main.add_(self.late.land(late, replaces_own=self.firing.sends_late))

    @property
    def awaits_first(self) -> bool:
        """Whether zeros take the gradient's place, so that nothing that is due says who has used what."""
        return self.firing.sends_late and not self.late.due()

    def drain(self) -> None:
        """Put the oldest late gradient into `.grad`."""
        late = self.late.oldest()
        self.not_finite, self.put_in = [], []
        self._note(late.put_in or late.not_finite)
        self.buffer.expect_all()
        # What any rank used when it was sent gets a `.grad`, frozen meanwhile or not: so do all ranks alike.
        self.buffer.unused = list(range(len(self.bucket.items)))
        self.buffer.main.copy_(self.late.land(late, replaces_own=self.firing.sends_late))

    @property
    def sends_residuals(self) -> bool:
        """Whether what this step has brought may hold what earlier messages have left out."""
        return any(transfer.task.sends_residuals for transfer in self._ran)

    def guarded_results(self) -> list[Tensor]:
        """What the exchanges of this step have brought, where it must be finite."""
        if not self.is_guarded:
            return []
        return [*self._observed, *([self.buffer.main] if self._moved else [])]

    def bad_results(self) -> list[Tensor]:
        """The `guarded_results` that are not finite; the host waits for them."""
        results = self.guarded_results()
        if self._is_finite:
            results = [result for result in results if result is not self.buffer.main]
        return [result for result in results if not is_finite(result)]

    def commit(self, good: bool | Tensor) -> None:
        """Keep or drop what the primitives wrote to their slots, and let go of what was sent and received."""
        for transfer in self._ran:
            transfer.commit(good)
        self._ran, self._observed = [], []

    def abort(self) -> None:
        """Forget what was sent in this step, which an error has ended."""
        self.commit(False)
        self.late.forget_sent_now()
        self.buffer.theirs.give_back()

    def _note(self, found: Sequence[str] | PutIn) -> None:
        """What this rank has put into what comes in this step, if that is not finite."""
        if isinstance(found, PutIn):
            self.put_in.append(found)
        else:
            self.not_finite += found

    def _program(self, transfers: Sequence[Transfer], *, divided: bool) -> Program:
        buffer, numel = self.buffer, self.bucket.numel
        for transfer in transfers:
            task = transfer.task
            message = buffer.whole if task.carries_flags else buffer.main
            if not task.moves_gradient:  # what lies in `.grad` stays there
                message = message.clone()
            transfer.read(message[:numel])
            watched = self._controllers.watches(task.index)
            local = message[:numel].clone() if watched else None
            if task.sends_residuals:
                held = hold_residuals_back(task, transfer.slots, self._bound.world.membership)
                self._held.append((transfer.slots, held))
            result = yield from transfer.exchange(message, divided=divided)
            if watched:
                cx = self._clock.context(task.rule)
                self._controllers.observe(task.index, cx, self.bucket.index, local, result[:numel])
            if task.moves_gradient:
                buffer.take_flags(result)
                transfer.apply(transfer.finalize(result[:numel]), into=buffer.main)
            else:
                self._observed.append(result)
        if self._moved and self.is_guarded and not self._on_gpu:
            self._is_finite = is_finite(buffer.main)  # now, while other buckets are on their way
        return buffer.main

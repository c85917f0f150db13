"""Follows the training loop: which forward, backward and optimizer step belong to which step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from relaxcomm.engine.loop import loop_checks, scaler_sharing
from relaxcomm.engine.loop.callback import callback
from relaxcomm.engine.loop.given_up import GivenUpSteps
from relaxcomm.engine.loop.hooks import Hooks
from relaxcomm.engine.loop.listeners import Between, Survivors
from relaxcomm.engine.loop.open_step import OpenStep, Reached
from relaxcomm.engine.loop.optimizer_turns import OptimizerTurns
from relaxcomm.errors import RankLostError
from relaxcomm.replica.fused_optimizers import lay_out_as_parameters, put_back
from relaxcomm.replica.wrappers import check_forward
from relaxcomm.step.step import Step


class Loop:
    """One step of an algorithm for each optimizer step.

    Several optimizers make one step: it begins with the first one's and ends when each has stepped.
    A step that a GradScaler skipped is closed by the next forward, which sees that the scaler did so.

    Args:
        hooks: that tell of the training loop.
        step: what is done in a step.
        survivors: who bring this rank to go on where others are lost.
    """

    def __init__(self, hooks: Hooks, step: Step, survivors: Survivors) -> None:
        self._hooks, self._survivors = hooks, survivors
        self.given_up = GivenUpSteps(survivors, hooks.end_of_backward)
        """Steps that exchange nothing more."""
        self.step = step
        """What is done in a step now; nobody else keeps it, as a switch and other ranks bring another."""
        self._between: Between | None = None
        self._open, self._paused = OpenStep(), False  # paused under no_sync
        self.turns = OptimizerTurns(step.bound.replica)
        """Which optimizers have stepped in this step."""
        self._replaced: list[tuple[Tensor, Tensor, Tensor]] = []  # gradients, while an optimizer steps

    def follow(self, between: Between | None) -> None:
        """Follow the training loop from now on, and tell somebody of the end of each step."""
        self._between = between
        self._hooks.follow(self, gradients=self.step.follows_gradients)
        scaler_sharing.share(self.step.bound.replica.scaler, self)

    def go_on_with(self, step: Step, resumes_at: int, caught_up_at: int) -> None:
        """The same algorithm goes on among other ranks; see `GivenUpSteps.go_on_with`."""
        self.step = step
        self.given_up.go_on_with(step, resumes_at, caught_up_at)

    def leave(self) -> None:
        """Follow the training loop no more."""
        self._hooks.follow(None, gradients=False)
        scaler_sharing.leave(self.step.bound.replica.scaler, self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exchange no gradients inside."""
        loop_checks.forget_given_up(self.step)
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @property
    def is_between_steps(self) -> bool:
        """Whether no gradients are there that belong to the step that comes next."""
        return not (self._open.has_begun or self.step.backward.synchronised)

    def abort_step(self) -> None:
        """Forget what an error has left of a step: another batch comes instead, or a state is loaded."""
        self._open = OpenStep()
        self._hooks.end_of_backward.forget()
        self._hooks.gradients.tell_each()  # what was collected belongs to nothing
        self.turns.begin_anew()
        self.step.abort()

    def close_skipped_step(self) -> None:
        """Close a step that a GradScaler skipped on this rank, also of engines that share the scaler."""
        scaler_sharing.close_skipped_steps(self.step.bound.replica.scaler)

    @callback
    def forward_begins(self, module: nn.Module) -> None:
        """The model is about to be called."""
        loop_checks.abort_failed(self, failed=self._open.exchanges)
        self._hooks.gradients.tell_each()  # what was collected is of a backward that has failed
        self._hooks.end_of_backward.forget()
        if torch.is_grad_enabled():
            self.close_skipped_step()
            self._open.is_called = True  # in the step that comes; the skipped one has ended
            self._hooks.unwatch_parts()
            if self._between is not None:
                self._between.forward_begins()

    @callback
    def forward_ends(self, module: nn.Module, output: Any) -> None:
        """The model has returned something, on which a backward may begin."""
        if torch.is_grad_enabled():
            replica = self.step.bound.replica
            check_forward(replica.model, module, replica.parameters[0].parameter)
            self._hooks.output.watch(output)

    @callback
    def part_begins(self) -> None:
        """A part of the model is about to be called."""
        if torch.is_grad_enabled():
            self.close_skipped_step()

    @callback
    def part_gradient_arrives(self) -> None:
        """A parameter has its gradient, and the model itself was not called."""
        if not self._hooks.end_of_backward.is_awaited:
            self.backward_begins()
            self._begin_uncalled()

    def backward_begins(self) -> None:
        """A backward has reached the model's output, or a parameter."""
        self._open.is_stepping = bool(self.turns.stepped)  # else another batch's step has failed
        if self._paused:
            loop_checks.forget_given_up(self.step)
        self._hooks.end_of_backward.await_it()

    @callback
    def gradients_arrive(self, indices: list[int]) -> None:
        """Parameters have their gradients."""
        if failed := self._hooks.end_of_backward.has_failed:  # and no forward was told of since
            loop_checks.abort_failed(self, failed=self._open.exchanges)
        self._take_gradients([] if failed else indices)  # some may be of the one that has failed
        if self._hooks.end_of_backward.is_awaited:
            self._hooks.gradients.collect()

    @callback
    def backward_ends(self) -> None:
        """The outermost backward has ended."""
        bound = self.step.bound
        if rest := self._hooks.gradients.tell_each():
            self._take_gradients(rest)
        self._hooks.end_of_backward.forget()
        bound.controllers.accumulation.add()
        self.turns.watch()
        reached, self._open.backward = self._open.backward, Reached.NOTHING
        if reached is Reached.PEERS:
            self._attempt(self.step.end_backward)
        elif not self._paused:
            bound.replica.scale.remember()
        self.given_up.go_on()
        self._hooks.gradients.await_also(self.step.backward.awaited)
        if self.given_up.include_this:
            self.step.discard_gradients()
        if reached is not Reached.NOTHING and not bound.replica.optimizers and not self._paused:
            loop_checks.check_now_and_then(self.step)
            self._end(self.step.tick)

    @callback
    def step_begins(self, optimizer: Optimizer, closure: object) -> None:
        """An optimizer is about to step."""
        failed = self._open.exchanges and self._hooks.end_of_backward.has_failed
        loop_checks.check_ended(self.step, failed=failed)
        self.close_skipped_step()
        loop_checks.check_turn(self.step, optimizer, self.turns.stepped, closure)
        if self.step.bound.replica.scaler is not None and not self._open.is_called:
            self._hooks.watch_parts()
        later = optimizer if self._open.is_stepping else None
        if later is None:
            loop_checks.check_now_and_then(self.step)
        if not self.given_up.include_this:
            loop_checks.check_exchanged(self.step, later, unsynchronised=self._open.is_accumulated)
            self._open.is_stepping = True  # what is refused has not begun
            if later is None:
                self.step.before_step()
        self._replaced = lay_out_as_parameters(optimizer)

    @callback
    def step_ends(self, optimizer: Optimizer) -> None:
        """The optimizer has stepped."""
        put_back(self._replaced)
        self.turns.stepped.append(optimizer)
        if self.turns.are_over:
            self.close_step()

    def _take_gradients(self, indices: list[int]) -> None:
        self._open.reach_parameters()
        self.backward_begins()  # at whose end the rest is taken
        self.step.bound.controllers.accumulation.arrive()
        if self._paused:
            loop_checks.check_not_exchanged(self.step)
            self._open.is_accumulated = True
        else:
            self._attempt(self._hand_in, indices)

    def _hand_in(self, indices: list[int]) -> None:
        """Hand in gradients of a backward that reaches parameters; `autograd.grad` does not come here."""
        if not self._open.exchanges:
            loop_checks.check_no_graph()
            if not self._open.is_called:
                self._begin_uncalled()
            self.step.bound.replica.scale.remember()
            self.step.begin_backward()
            self._open.backward = Reached.PEERS
        self.step.ready(indices)

    def _begin_uncalled(self) -> None:
        """The training loop calls parts of the model, or methods other than its forward."""
        skipped = self.turns.have_skipped
        if self._between is not None:
            self._between.backward_begins(skipped=skipped)
        loop_checks.check_seen(self.step, skipped=skipped)
        self.close_skipped_step()

    def close_step(self) -> None:
        """Every optimizer has stepped, or a GradScaler has skipped those that have not."""
        scaler_sharing.take_turn(self.step.bound.replica.scaler, self)
        if not (self._open.is_stepping or self.given_up.include_this):
            self.step.apply_due()
        self._end(self.step.after_step)

    def _end(self, finish: Callable[[], None]) -> None:
        """Close the step by `finish`, and tell who may switch."""
        self._open = OpenStep(self._open.backward)
        self.turns.begin_anew()
        self._attempt(finish)
        self.given_up.close(self.step)
        if self._between is not None:
            self._between.step_ends()
        self._survivors.step_ends()

    def _attempt(self, work: Callable[..., None], *args: Any) -> None:
        """Do something together with others, unless this step is given up."""
        if not self.given_up.include_this:
            try:
                work(*args)
            except RankLostError as error:
                self.give_up_step(error)

    def give_up_step(self, error: RankLostError) -> None:
        """Go on without lost ranks, and exchange no more in this step; raises the error if that cannot be."""
        waits = self.given_up.add(error)  # a backward under way ends first
        self._open.backward = Reached.PEERS if waits else Reached.NOTHING
        self.step.discard_gradients()

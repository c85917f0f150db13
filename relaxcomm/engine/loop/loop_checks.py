"""What a training loop may not do, with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from relaxcomm.engine.loop.listeners import StepOwner
from relaxcomm.errors import UsageError
from relaxcomm.replica.grad_scaler import check_scaler
from relaxcomm.step.step import Step

_LOOK_STEPS = 16


def check_ended(step: Step, *, failed: bool) -> None:
    """Raise UsageError for what follows a backward that has begun and failed, unless this rank is alone."""
    if failed and step.bound.world.process.world_size > 1:
        raise UsageError(
            "the last backward did not end: it raised an error, and peers wait for its gradients. If all "
            "ranks have failed there, load a state on all (engine.load_run_state_dict); else start them anew"
        )


def abort_failed(loop: StepOwner, *, failed: bool) -> None:
    """Forget a step whose backward has begun and failed, where nobody waits for it; else raise UsageError."""
    check_ended(loop.step, failed=failed)
    if failed:
        loop.abort_step()


def forget_given_up(step: Step) -> None:
    """Count gradients as not exchanged where nothing is left of them: their batch was given up.

    Of what keeps state or was voted on, something is left elsewhere. Inside join() ranks without data follow
    one exchange a step. A rank that alone gives a batch up is a step behind, which its next exchange shows.
    """
    backward, bound = step.backward, step.bound
    adds_up = all(bucket.firing.accumulates for bucket in backward.buckets)
    if not (backward.exchanged and adds_up) or step.inputs.active or bound.plan.ballot(bound.clock.step):
        return
    if not bound.replica.has_gradients():
        backward.tick()


def check_not_exchanged(step: Step) -> None:
    """Raise UsageError for a backward under no_sync that adds to gradients which all ranks have."""
    if step.backward.exchanged:
        raise UsageError(
            f"backward under no_sync() in step {step.bound.clock.step}, after a backward outside: "
            f"{step.bound.algorithm.name} has exchanged this step's gradients, and what is added now would "
            "be this worker's alone. Run the last backward of each step outside no_sync(); to give up a "
            "batch after its backward, call optimizer.zero_grad() and then optimizer.step() all the same, "
            "which changes nothing"
        )


def check_no_graph() -> None:
    """Raise UsageError for a backward that makes gradients of gradients."""
    if torch.is_grad_enabled():
        raise UsageError("backward(create_graph=True) is not supported: exchanged gradients carry no graph")


def check_turn(step: Step, optimizer: Optimizer, stepped: Sequence[Optimizer], closure: object) -> None:
    """Raise UsageError for a step of the mean, one with or inside a backward, or one that comes twice."""
    step.bound.replica.mean.check_left(f"{type(optimizer).__name__}.step()")
    if closure is not None:
        call = "call backward, then step()"
        if isinstance(optimizer, torch.optim.LBFGS):
            call = "LBFGS, which evaluates the loss several times a step, needs one: use another optimizer"
        raise UsageError(f"step(closure) is not supported: it runs backward inside the step; {call}")
    if torch._C._current_graph_task_id() != -1 and not step.stands_alone:
        raise UsageError(
            f"{type(optimizer).__name__} steps inside backward, before {step.bound.algorithm.name} has "
            "exchanged its gradients, or while late results wait for their place; step after backward, or "
            "use an algorithm that exchanges parameters without delay, such as local_sgd"
        )
    if optimizer in stepped:
        left = [type(one).__name__ for one in step.bound.replica.optimizers if one not in stepped]
        raise UsageError(
            f"{type(optimizer).__name__} steps again in step {step.bound.clock.step}, before "
            f"{', '.join(left)} has: a step ends when each optimizer that was given to attach has stepped "
            "once. Step all of them equally often, or attach an engine of its own to the part of the model "
            "that is trained less"
        )


def check_exchanged(step: Step, later: Optimizer | None = None, *, unsynchronised: bool) -> None:
    """Refuse a step whose gradients a rule should have exchanged, and has not.

    Args:
        step: that is about to end.
        later: an optimizer after the first, which may have no gradients: their batch was given up.
        unsynchronised: whether a backward of it ran under no_sync.
    """
    if step.backward.synchronised or not step.backward.is_due():
        return
    if later is not None and not step.bound.replica.has_gradients(later):
        return
    step.bound.replica.trained.check_frozen()  # which may be why
    step.bound.replica.trained.check()
    number, name = step.bound.clock.step, step.bound.algorithm.name
    cause = (
        "optimizer.step() after backward under no_sync() only"
        if unsynchronised
        else f"optimizer.step() in step {number} without a backward that reached the model's parameters"
    )
    raise UsageError(
        f"{cause}: {name} exchanges gradients as backward makes them, so those of this "
        "step were never exchanged. Run the last backward of each step outside no_sync(); where "
        "gradients are made otherwise (torch.func, by hand), use an algorithm that exchanges parameters, "
        "such as {name: local_sgd, steps: 1}"
    )


def check_seen(step: Step, *, skipped: bool) -> None:
    """Refuse a step that the GradScaler skipped, where its exchange is missed only now."""
    if skipped and step.has_work_after():
        raise UsageError(
            f"step {step.bound.clock.step} was skipped by the GradScaler, and its exchange is seen to be "
            "missing only now, in the next backward, since neither the model nor a part of it was called; "
            "train through the model itself: its forward may call what computes the loss"
        )


def check_now_and_then(step: Step) -> None:
    """Look at what seldom changes: each look costs more than all else in a step without an exchange."""
    if step.backward.synchronised or step.bound.clock.step % _LOOK_STEPS == 0:
        check_scaler(step.bound.replica.scaler)
        step.bound.replica.trained.check()

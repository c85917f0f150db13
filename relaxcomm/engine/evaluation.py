"""The mean model, for as long as it is evaluated or saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.engine.session import Session
from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.replica.modes import evaluated, in_train_mode, trained
from relaxcomm.step import model_means
from relaxcomm.step.kept_replica import Kept, kept
from relaxcomm.tensors.buckets import Bucket


@contextmanager
def averaged(session: Session) -> Iterator[None]:
    """Hold the mean model inside, or the server's, and this rank's own afterwards; every rank must enter."""
    session.loop.close_skipped_step()
    with session.world.statistics.evaluating(), session.loop.turns.uncounted():
        means = session.common_events.together(lambda: _means(session))
        optimizers = session.replica.optimizers
        at_once = None if in_train_mode(optimizers) else means  # which a change of mode would alter
        with kept(session.bound, at_once) as own, evaluated(optimizers, keeps=True) as changed:
            model_means.replace(session.bound, means)
            means.clear()  # as much as the model
            own.leave_written()
            with session.replica.mean.held(lambda: _left(own, changed)), session.hooks.steps_alone():
                yield


@contextmanager
def _left(own: Kept, changed: Sequence[Optimizer]) -> Iterator[None]:
    """Have this rank's own there inside, as ranks that do not hold the mean have theirs."""
    with own.swapped_in(), trained(changed):
        yield


def _means(session: Session) -> list[tuple[Bucket, Tensor]]:
    """Replace nothing before all ranks have them: those that are left take means of their own once more."""
    bound, step = session.bound, session.step
    optimizers = bound.replica.optimizers
    changes = bool(in_train_mode(optimizers))  # else nothing is written, and a copy would be of no use
    with kept(bound) if changes else nullcontext(), evaluated(optimizers, keeps=True):
        with bound.meeting("averaged()"):
            step.meet(evaluates=True)
        return model_means.finite_means(bound, EVALUATION, step.parameters.late.asked())

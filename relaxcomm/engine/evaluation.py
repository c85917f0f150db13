"""The mean model, for as long as it is evaluated or saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relaxcomm.engine.session import Session
from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.replica.modes import evaluated
from relaxcomm.step import replicas, served
from relaxcomm.step.kept_replica import kept


@contextmanager
def averaged(session: Session) -> Iterator[None]:
    """Hold the mean model inside, or the server's, and this rank's own afterwards; every rank must enter."""
    session.loop.close_skipped_step()
    with (
        session.world.statistics.evaluating(),
        session.loop.turns.uncounted(),
        kept(session.bound) as leave_written,
        evaluated(session.replica.optimizers, keeps=True),
    ):
        session.together(lambda: _average(session))
        leave_written()
        with session.replica.mean.held():
            yield


def _average(session: Session) -> None:
    bound, asked = session.bound, session.step.parameters.asked()
    if bound.plan.keeps_step:
        bound.meet("averaged()")
    served.meet(bound, asked, evaluates=True)
    if not bound.plan.keeps_step:  # whoever is early is asked by the others until they come
        bound.meet("averaged()")
    replicas.average(bound, EVALUATION, asked)

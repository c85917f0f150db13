"""How a run ends: what is on its way is applied, and replicas that may differ end as their mean."""

from __future__ import annotations

from relaxcomm.data.clients import ROUND_GIVEN_UP
from relaxcomm.engine.reporting import run_warnings
from relaxcomm.engine.session import Session
from relaxcomm.engine.switching import switching
from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.replica.buffers import requantize
from relaxcomm.replica.modes import evaluated
from relaxcomm.step import model_means, replicas


def finish(session: Session, *, average: bool | None) -> None:
    """Apply what is on its way, and end with the mean model if that is wanted, or makes a difference."""
    session.loop.close_skipped_step()
    if session.loaders.in_round:
        session.step.parameters.tell(ROUND_GIVEN_UP, {})
        run_warnings.warn_of_left_round(session.bound)
    session.world.statistics.pause()  # what a last round has waited counts, and no wait for the end
    session.detach()
    run_warnings.warn_of_idle(session.bound, session.schedule.to_come, session.loop.turns.backwards)
    together = session.common_events.together
    together(lambda: _come_to_rest(session))
    if average or (average is None and session.bound.replicas_may_differ):
        with session.world.statistics.evaluating(), evaluated(session.replica.optimizers, keeps=False):
            means = together(lambda: model_means.finite_means(session.bound, EVALUATION))
            model_means.replace(session.bound, means)
            session.replica.loaded.end_here()
            del means  # as much as the model
        requantize(session.replica.model)
        together(lambda: run_warnings.warn_of_parted(session.bound))
    elif average is None:
        replicas.check(session.bound, session.replica.parameters)


def _come_to_rest(session: Session) -> None:
    with session.bound.meeting("close()"):
        switching.come_to_rest(session.step)

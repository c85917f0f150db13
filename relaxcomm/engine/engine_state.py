"""The state of an attached run on one rank: its step's, its schedule's and its loaders'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.engine.attaching.consistency import compare, sharing_errors
from relaxcomm.engine.saved_state import step_state
from relaxcomm.engine.saved_state.state_fits import check_fits
from relaxcomm.engine.saved_state.state_schema import EngineState, parse
from relaxcomm.engine.session import Session
from relaxcomm.network.transport import Membership


def export(session: Session, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """All state of this rank.

    Args:
        session: of the run.
        check: raises what else is wrong on this rank.

    Raises: UsageError for loaded weights that would move a base.
    """
    session.loop.close_skipped_step()
    session.bound.flags.raise_if_bad()
    with _meeting(session):
        check()
        is_loaded = bool(session.replica.loaded.refuse(session.bound.algorithm, session.bound.clock.step))
    session.step.parameters.even_out()
    parts = {**step_state.export(session.step, is_loaded=is_loaded), **session.schedule.export()}
    return {**parts, "loaders": session.loaders.export()}


@contextmanager
def _meeting(session: Session) -> Iterator[None]:
    """What is wrong inside, on one rank alone, is told where all ranks have met, if they meet to save."""
    bound = session.bound
    shared = sharing_errors(bound.world.transport, "state_dict()", bound.event_step)
    with shared if bound.algorithm.meets_to_save else nullcontext():
        try:
            yield
        finally:  # or others wait at a server for this rank's next push
            session.step.meet()


def checked(session: Session, state: Any) -> EngineState:
    """The state with types, of this rank and run; every rank calls it, and nothing changes.

    Raises: ConfigError, on all ranks, where one's cannot be that.
    """
    with sharing_errors(session.world.transport, "load_state_dict()") as told:
        parsed = parse(state)
        algorithm = session.schedule.algorithm_of(parsed)
        check_fits(parsed, algorithm, session.bound, session.world.membership)
        told.mine = parsed.together(keeps_step=algorithm.keeps_step)
    compare(told.everyone, "load the states that were saved together")
    return parsed


def algorithm_of(session: Session, states: Sequence[Any]) -> Algorithm:
    """The algorithm that ran when all ranks' states were saved, in rank order, by any number of ranks.

    Raises: ConfigError for what cannot be states of this run, or was not saved together.
    """
    parsed = [parse(state) for state in states]
    algorithm = session.schedule.algorithm_of(parsed[0])
    for rank, one in enumerate(parsed):
        check_fits(one, algorithm, session.bound, Membership(rank, len(states)))
    together = [one.together(keeps_step=algorithm.keeps_step) for one in parsed]
    compare(together, "load the states that were saved together")
    return algorithm


def restore(session: Session, state: EngineState) -> None:
    """Go on from a state that was `checked`; every rank calls it."""
    session.loop.abort_step()
    session.step.parameters.even_out()
    session.replica.loaded.forget()  # the weights belong to the state
    session.schedule.resume(state)
    step_state.restore(session.step, state)
    session.metering.restored()
    session.loaders.restore([dict(one) for one in state.loaders])
    session.replica.loaded.forget(is_restored=True)

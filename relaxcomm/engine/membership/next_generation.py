"""From one generation of ranks to the next: those who stay agree, and those who join are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from relaxcomm.carry.loaders import carried_loaders
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.engine.membership import admission, bucket_parts, client_states, parcels, survival
from relaxcomm.engine.membership.standings import Loaded, Standing, Standings
from relaxcomm.engine.saved_state import state_fits, step_state
from relaxcomm.engine.saved_state.state_schema import EngineState, parse
from relaxcomm.errors import CommunicationError, ConfigError, ConfigWarning, RankLostError
from relaxcomm.monitoring.exporter import Target
from relaxcomm.network.generations import Generation
from relaxcomm.network.transport import Membership
from relaxcomm.step.bound import Bound
from relaxcomm.step.handover import Handover
from relaxcomm.step.step import Step
from relaxcomm.step.world import World
from relaxcomm.system.warn import warn

MakeStep: TypeAlias = Callable[[Bound], Step]


@dataclass(frozen=True)
class Resumed:
    """Where a rank resumes among the ranks of a new generation.

    Args:
        step: what is done in a step.
        loaders: where data sets are read on; None where each rank reads on in its own.
        resumes_at: the clock when exchanges go on.
        targets: where the metrics of each rank are found.
        events: how many are over of what all do together.
        is_behind: whether others have finished what it has not, and brought it along.
        caught_up_at: the clock when it has come as far as the others; 0 where it has.
    """

    step: Step
    loaders: Loaded | None
    resumes_at: int
    targets: Sequence[Target | None]
    events: int
    is_behind: bool = False
    caught_up_at: int = 0


@dataclass(frozen=True)
class Transition:
    """A rank's change from one generation of ranks to the next.

    Args:
        before: what was done in a step.
        world: the ranks now.
        standing: of this rank.
        left: the generation that is over.
        now: the one that begins.
        make_step: with the algorithm among the ranks now.
        schedule: of algorithms, for those who join.
        late: what `step_state.export_late` has made of results on their way; None where they are lost.
    """

    before: Step
    world: World
    standing: Standing
    left: Generation
    now: Generation
    make_step: MakeStep
    schedule: Mapping[str, Any]
    late: Mapping[str, Any] | None

    def before_change(self, standings: Standings) -> list[Standing | None]:
        """Where the ranks of the generation that is over stand; None for those who are lost."""
        known = dict(zip(self.now.workers, standings.by_rank, strict=True))
        return [known.get(worker) for worker in self.left.workers]

    def loaders(self, standings: Standings) -> Loaded | None:
        """Where all go on reading: what is left of an epoch is dealt out among the ranks now.

        A rank that is lost has read as far as the one that has read the farthest, and one that is behind
        will have, so that all end in the same step. None where each reads on: where clients are played, or
        ranks read different data, which nobody can deal out.
        """
        if self.before.bound.algorithm.round_plan is not None:
            return None
        farthest = standings.read_farthest
        stood = [
            farthest if one is None or one.read_until < farthest.read_until else one
            for one in self.before_change(standings)
        ]
        try:
            return carried_loaders([one.loaders for one in stood])
        except ConfigError as error:
            warn(f"each rank reads on in its own data: {error}", ConfigWarning)
            return None


def stay(transition: Transition) -> Resumed:
    """Go on among other ranks.

    A result that some have applied and others have not is given to all: whoever has come farthest sends
    what should be the same everywhere. Whoever is behind exchanges nothing until it has come as far.
    """
    old = transition.before.bound
    in_step = transition.standing.next_step - old.clock.step
    standings = Standings.gather(transition.world, transition.standing)
    _check_trained(old, standings)
    handover = Handover(old, transition.world, in_step=bool(in_step))
    with old.replica.loaded.outlasting(others_end_so=standings.end_as_loaded):
        try:
            handover.take()
            new = survival.rebound(old, transition.world)
            handover.give(new)
            return _stay(transition, new, standings)
        except RankLostError:
            handover.undo()
            raise


def _stay(transition: Transition, new: Bound, standings: Standings) -> Resumed:
    old, world, mine = transition.before.bound, transition.world, transition.standing
    rests = [None if one is None else one.rests for one in transition.before_change(standings)]
    is_behind = standings.is_behind(mine)
    if new.algorithm.is_collective and standings.differ:
        survival.send_shared(new, standings.farthest)
    if is_behind:
        survival.forget_moves(new)
    new.clock.step = old.clock.step
    resumes_at = standings.next_step if new.plan.keeps_step else mine.next_step
    bucket_parts.cut_anew(new, old, rests)
    step, loaders, late = transition.make_step(new), transition.loaders(standings), transition.late
    if late is not None and standings.are_whole and new.plan.buckets is not None:
        step_state.restore_late(step, **late)
    if standings.joined:
        state = admission.exported_replica(new.replica, standings.frozen)
        engine = {**step_state.export(step), **transition.schedule, "loaders": loaders or mine.loaders}
        state |= {"engine": {**engine, "client_states": {}}, "rests": rests}
        admission.hand_over(world, {**state, "resumes_at": standings.last_step}, standings.joined)
    client_states.share_out(new.algorithm.round_plan, new.replica, world, rank_before=old.world.rank)
    survival.begin_anew(new, standings.joined)
    ahead = standings.read_farthest.read_until
    caught_up_at = ahead if ahead > mine.next_step and new.algorithm.round_plan is None else 0
    return Resumed(step, loaders, resumes_at, standings.targets, standings.events, is_behind, caught_up_at)


def join(
    fresh: Bound,
    world: World,
    make_step: MakeStep,
    algorithm_of: Callable[[EngineState], Algorithm],
    *,
    in_step: bool,
    target: Target | None,
) -> tuple[Resumed, EngineState]:
    """Go on as a rank that was not there before, from the state that another one hands over.

    Args:
        fresh: bound to the same model; nothing of it is taken.
        world: the ranks now.
        make_step: with the algorithm among them.
        algorithm_of: the one that runs, by the state of those who run it.
        in_step: whether the training loop is in a step, which is given up.
        target: where others find this rank's metrics.

    Returns: where this rank resumes, and that state.

    Raises: ConfigError for a state that is not of this model.
    """
    standings = Standings.gather(world, Standing(target=target, frozen=admission.frozen(fresh.replica)))
    if standings.differ:
        parcels.receive_shared(world, standings.farthest)
    state = admission.take_over(world)
    saved = parse(state["engine"])
    algorithm = algorithm_of(saved)
    state_fits.check_fits(saved, algorithm, fresh, Membership(saved.rank, saved.world_size))
    new = Bound(algorithm, fresh.replica, world, fresh.norms)
    admission.restore_replica(new.replica, state)
    if saved.layout is not None:
        new.lay_out_as(saved.layout, saved.strides)
        admission.restore_slots(new, {(rule, unit): slots for rule, unit, slots in saved.slots})
        bucket_parts.cut_anew(new, None, state["rests"])
    new.state.rounds.update({(rule, unit): count for rule, unit, count in saved.rounds})
    new.controllers.restore(saved.values)
    client_states.share_out(algorithm.round_plan, new.replica, world, rank_before=-1)
    new.clock.step = state["resumes_at"] - in_step
    world.statistics.steps = saved.statistics.steps + new.clock.step - saved.step
    world.statistics.synchronisations = saved.statistics.synchronisations
    step = make_step(new)
    if saved.layout is not None:
        step_state.restore_late(step, dict(saved.votes), saved.late_gradients, saved.late_parameters)
    new.clock.step = state["resumes_at"]  # as on the others, who are between two steps
    survival.begin_anew(new, standings.joined)
    new.clock.step = state["resumes_at"] - in_step
    loaders = [dict(one) for one in saved.loaders]
    return Resumed(step, loaders, new.clock.step + in_step, standings.targets, standings.events), saved


def _check_trained(old: Bound, standings: Standings) -> None:
    """Refuse, on all ranks, to take weights that are evaluated for those that are trained."""
    sends_model = standings.differ and not old.algorithm.lets_replicas_differ
    takes = bool(old.state.services) or survival.makes_equal(old.algorithm) or sends_model
    if takes and (evaluated := standings.evaluated):
        raise CommunicationError(
            f"ranks were lost while load_state_dict() had changed {evaluated} since the last step, which "
            f"{old.algorithm.name}, to go on without them, would take for what was trained; start the run "
            "again from a checkpoint, put back what is evaluated before all ranks do anything together, and "
            "load on all ranks what they are to end with"
        )

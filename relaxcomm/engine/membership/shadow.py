"""A rank that has run out of data follows the others until none of them trains."""

from __future__ import annotations

from relaxcomm.engine.loop.loop import Loop
from relaxcomm.engine.membership import survival
from relaxcomm.engine.switching.algorithm_schedule import AlgorithmSchedule
from relaxcomm.step import broadcasts, copied_states
from relaxcomm.step.bound import Bound
from relaxcomm.tensors.items import Item


def follow(loop: Loop, schedule: AlgorithmSchedule) -> None:
    """Take part in all that the others do, then take over the model of one that trained longest.

    Args:
        loop: whose step this rank makes; a switch makes another.
        schedule: which switches.
    """
    world = loop.step.bound.world
    statistics, made = world.statistics, world.statistics.steps  # others have made as many, or not
    loop.step.check_loaded()
    schedule.stop_timing()
    while _follow_step(loop, schedule):
        pass
    step = loop.step
    step.bound.votes.drain()  # what is on its way to parameters that are given up
    step.parameters.late.drain()
    # Shadows have looked ahead: clocks differ.
    clock = step.bound.clock.step
    steps = world.gather(clock - (statistics.steps - made), "the end of join()")
    replica, root = step.bound.replica, steps.index(max(steps))
    broadcasts.broadcast(replica.model, world.transport, replica.bucket_bytes, root=root)
    step.rewind(clock - max(steps))  # shadows look ahead for the next exchange
    if len(set(steps)) > 1:
        _take_over(step.bound, root)
    statistics.pause()


def _follow_step(loop: Loop, schedule: AlgorithmSchedule) -> bool:
    """One step of the others' clock; False when nobody trains any more, or needs this rank to."""
    while schedule.is_due():
        if not loop.step.inputs.agree(trains=False):
            return False
        schedule.go_on()
    step = loop.step
    if not step.shadow():
        return False
    if not step.inputs.is_anything_ahead() and not schedule.is_ahead():
        return False  # the others come to the end each in a step of its own
    step.tick()
    return True


def _take_over(bound: Bound, root: int) -> None:
    """Let all have what one rank has of what rules keep equal, beside the model.

    Shadows have not stepped their optimizers, and exchanged at the learning rate of their last batch.
    """
    replica, world = bound.replica, bound.world
    names = [item.name for item in replica.parameters] if bound.plan.keeps_step else []
    kept = bound.algorithm.kept_equal(names, bound.clock.step)
    slots = [
        (one, {name: one[name].clone() for name in names}) for one, names in survival.shared_slots(bound)
    ]
    covers = kept.issuperset(item.name for item in replica.parameters)
    states, left = copied_states.begin_as(replica, world, root, kept, settings=covers)
    items = [Item(name, value) for _, values in slots for name, value in values.items()]
    broadcasts.copy([*items, *states], world.transport, replica.bucket_bytes, root=root)
    for one, values in slots:
        one.restore(values)
    if covers:
        _share_scale(bound, root)
    copied_states.warn_of_left("join()", left)


def _share_scale(bound: Bound, root: int) -> None:
    """Have the GradScaler, if there is one, hold what that of one rank holds."""
    scaler = bound.replica.scaler
    told = bound.world.gather(None if scaler is None else scaler.state_dict(), "the end of join()")[root]
    if scaler is not None and told:  # nothing is kept by one that is off
        scaler.load_state_dict(told)

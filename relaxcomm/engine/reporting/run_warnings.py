"""Warnings of a run: what did not happen in it, or will not, and what its end may not bring."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.config import Phase
from relaxcomm.errors import some_of
from relaxcomm.network import Transport
from relaxcomm.roles import VotingTrigger
from relaxcomm.step.bound import Bound
from relaxcomm.tensors.digest import checksum
from relaxcomm.tensors.items import Item

LOGGER = logging.getLogger("relaxcomm")
"""For warnings, of rank 0; without any configuration Python shows them on stderr."""


def warn_of_unequal_moments(transport: Transport, told: Sequence[str | None]) -> None:
    """Before the first step: optimizers hold different moments, by which replicas part that are to be equal.

    Args:
        transport: to the other ranks.
        told: a fingerprint of each process's, None where there is none.
    """
    shards = 1 if transport.shards is None else transport.shards.membership.world_size
    differ = any(len(set(told[shard::shards])) > 1 for shard in range(shards))
    if differ and None not in told and not transport.process.rank:
        LOGGER.warning(
            "relaxcomm: at attach() the ranks' optimizers hold different state (momentum, moments), so that "
            "replicas that are to be equal part in the first step. After an algorithm under which they "
            "differ call engine.switch(), which averages the state, in place of close() and attach(); else "
            "load one checkpoint on all ranks, or make the optimizer anew"
        )


def warn_of_unselected(parameters: Sequence[Item], algorithms: Sequence[Algorithm]) -> None:
    """Before the first step: name the rules that select no parameter which is trained."""
    for one in algorithms:
        for index, rule in enumerate(one.rules):
            if not _covers_any(rule, parameters):
                reason = _reason(rule, parameters)
                LOGGER.warning(f"relaxcomm: {_name(one, index)} will never exchange: {reason}")


def warn_of_idle(bound: Bound, phases_to_come: Sequence[Phase], unstepped: int) -> None:
    """At the end: name the rules that have never exchanged, and the phases that never began.

    Args:
        bound: the algorithm.
        phases_to_come: those.
        unstepped: backwards since the last step.
    """
    if bound.world.process.rank or bound.world.size == 1:
        return
    steps, lived = bound.world.statistics.steps, bound.clock.step
    for index, rule in enumerate(bound.algorithm.rules):
        if lived and index not in bound.state.exchanged:
            name = _name(bound.algorithm, index)
            reason = _reason(rule, bound.replica.parameters)
            LOGGER.warning(f"relaxcomm: {name} has never exchanged in {lived} steps: {reason}")
    if unstepped and not (steps or bound.state.exchanged):
        LOGGER.warning(
            f"relaxcomm: {bound.algorithm.name} has exchanged nothing: there were {unstepped} backwards, and "
            "no step() of the optimizers that were given to attach(); give it those that step the model"
        )
    for phase in phases_to_come if steps else ():
        LOGGER.warning(f"relaxcomm: {_phase(phase)} never began: the run had {steps} steps")


def warn_of_left_round(bound: Bound) -> None:
    """At the end: the last round of clients was left, and is given up."""
    if not bound.world.process.rank:
        LOGGER.warning(
            "relaxcomm: the last round was left before its end, so what its clients have moved does not "
            "count, and the model is that of the round before; read each round to its end: a loop that "
            "breaks at the last batch leaves it, too"
        )


def warn_of_held_data(bound: Bound, kind: tuple[str, int]) -> None:
    """Data were read that may be new, or others made anew while something still has these."""
    if not bound.world.process.rank:
        LOGGER.warning(
            f"relaxcomm: a data set ({kind[0]}, {kind[1]} samples) is read after one of this type and length "
            "that is still held, and is taken for another one, with epochs of its own: loader.epoch begins "
            "at 0. If it is the same data made anew, make it once, before the loop over epochs; if not, make "
            "both loaders before the first is read"
        )


def warn_of_other_length(bound: Bound, kind: tuple[str, int], saved: Collection[int]) -> None:
    """Data are read from their beginning, and a checkpoint has the place in such data of other lengths."""
    if not bound.world.process.rank:
        LOGGER.warning(
            f"relaxcomm: a data set ({kind[0]}, {kind[1]} samples) begins at epoch 0: the checkpoint has no "
            f"place for this length, but for {', '.join(map(str, sorted(saved)))} samples of this type. If "
            "it is the same data with samples added or left out, set loader.epoch to go on in another epoch"
        )


def warn_of_parted(bound: Bound) -> None:
    """At the end of a run whose replicas may differ: name what was frozen, and differs."""
    frozen = bound.replica.frozen
    if not (bound.algorithm.lets_replicas_differ and frozen) or bound.world.size == 1:
        return
    sums = torch.stack([checksum(item.tensor).cpu() for item in frozen]).tolist()
    everyone = bound.world.gather(sums, "close()")
    parted = [item.name for item, *held in zip(frozen, *everyone, strict=True) if len(set(held)) > 1]
    if parted and not bound.world.rank:
        LOGGER.warning(
            f"relaxcomm: ranks end with different values of {some_of(parted, 1)}: frozen, and so not "
            "exchanged, but changed on each rank for itself, where replicas differ (an average of the "
            "model's own, adapters that were merged). Keep an average as a buffer, which is averaged with "
            "the parameters; merge after close()"
        )


def warn_of_read_on() -> None:
    """After the end: training data are read on."""
    LOGGER.warning(
        "relaxcomm: a loader of engine.loader is read after the engine was closed, so nothing is exchanged "
        "in these steps; call engine.close() once, after the last epoch, or read within torch.no_grad()"
    )


def warn_of_unclosed() -> None:
    """At the end of the process: nobody has closed a run whose replicas may differ."""
    LOGGER.warning(
        "relaxcomm: the engine was never closed, so ranks may end with different models; call "
        "engine.close() after the last step, before the model is saved, or use the engine in a with block"
    )


def warn_of_short_run(algorithm: Algorithm, phases: Sequence[Phase], steps: int) -> None:
    """Before the first step of a run whose length is known: name what will not happen in it."""
    begins = [0, *(phase.after_steps for phase in phases), steps]
    running = [algorithm, *(phase.algorithm for phase in phases)]
    for phase in phases:
        if phase.after_steps >= steps:
            LOGGER.warning(f"relaxcomm: {_phase(phase)} will never begin: the run has {steps} steps")
    for one, begin, end in zip(running, begins, begins[1:], strict=False):
        length = min(end, steps) - begin
        for index in _never(one, length) if length > 0 else ():
            when = _reason(one.rules[index])
            LOGGER.warning(f"relaxcomm: {_name(one, index)} will never exchange in {length} steps: {when}")


def _never(algorithm: Algorithm, steps: int) -> Iterator[int]:
    """The rules that fire in none of so many steps."""
    for index, rule in enumerate(algorithm.rules):
        end = steps if rule.active[1] is None else min(steps, rule.active[1])
        period = rule.trigger.facts.period_steps if rule.trigger.facts.known == "start" else 1
        if rule.active[0] + period > end:
            yield index


def _name(algorithm: Algorithm, index: int) -> str:
    rules = f"rule {index} of " if len(algorithm.rules) > 1 else ""
    return f"{rules}{algorithm.name}"


def _phase(phase: Phase) -> str:
    return f"the phase with {phase.algorithm.name} (after_steps: {phase.after_steps})"


def _covers_any(rule: Rule, parameters: Sequence[Item]) -> bool:
    return any(rule.covers(item.name) for item in parameters)


def _reason(rule: Rule, parameters: Sequence[Item] = ()) -> str:
    """What the rule exchanges, if that is none of some parameters, or when it exchanges."""
    if parameters and not _covers_any(rule, parameters):
        return f"select is {list(rule.select or ())}, and no parameter of such a name is trained"
    begin = f" from step {rule.active[0]} on" if rule.active[0] else ""
    votes = " and no vote was for it" if isinstance(rule.trigger, VotingTrigger) else ""
    return f"it exchanges by {rule.trigger!r}{begin}{votes}"

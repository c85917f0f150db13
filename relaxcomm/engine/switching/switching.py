"""From one algorithm to another in the middle of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, TypeAlias, get_args

import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.config import Config
from relaxcomm.engine.attaching.binding import fitted
from relaxcomm.engine.attaching.consistency import compare, sharing_errors
from relaxcomm.engine.attaching.model_checks import check_buckets, check_model, check_switchable
from relaxcomm.engine.loop.loop import Loop
from relaxcomm.engine.switching.carry_over import Kept, carried_over
from relaxcomm.errors import CompositionWarning, ConfigError, UsageError
from relaxcomm.replica.fused_optimizers import lay_out_as_parameters
from relaxcomm.replica.named_parameters import named_parameters
from relaxcomm.roles import Payload, is_buffer
from relaxcomm.step import kept_replica, replicas, served
from relaxcomm.step.bound import Bound
from relaxcomm.step.flight import land_all
from relaxcomm.step.step import Step
from relaxcomm.system.warn import warn

Residuals: TypeAlias = Literal["carry", "drop"]


def check_between_steps(loop: Loop, happens: str, remedy: str) -> None:
    """Raise UsageError inside a step, on this rank: it may have issued what the others have not.

    Args:
        loop: that is followed.
        happens: what must not happen there.
        remedy: what to do after `optimizer.step()`.
    """
    if not loop.is_between_steps:
        raise UsageError(
            f"{happens} in the middle of step {loop.step.bound.clock.step}; {remedy} after optimizer.step()"
        )


def choose(bound: Bound, settings: Config, algorithm: object, residuals: Residuals) -> Algorithm:
    """The algorithm to go on with, made for the model; or the same error on all ranks."""
    replica = bound.replica
    with sharing_errors(bound.world.transport, "switch()", bound.event_step) as told:
        if residuals not in get_args(Residuals):
            raise ConfigError(f"residuals={residuals!r} is not allowed; give 'carry' or 'drop'")
        settings = settings.with_algorithm(algorithm)
        world_size = bound.world.size
        settings.check_world_size(world_size)
        graphs = settings.describe_topologies(world_size)
        following = fitted(replica.parameters, settings.algorithm)
        replica.trained.check()
        replica.trained.check_frozen()
        check_model(replica.model, named_parameters(replica.model), replica.optimizers, following)
        order = bound.order if following.at("backward") else None  # as `follow` lays out
        check_buckets(replica.parameters, following, settings, world_size, order)
        for one in (bound.algorithm, following):
            check_switchable(one)
        told.mine = f"{following!r}, residuals={residuals}", graphs
    wanted = [text for text, _ in told.everyone]
    if len(set(wanted)) > 1:
        shown = "; ".join(f"rank {rank}: {one}" for rank, one in enumerate(wanted))
        raise ConfigError(f"ranks switch to different algorithms: {shown}")
    compare([theirs for _, theirs in told.everyone])
    return following


def come_to_rest(step: Step) -> None:
    """Apply everything that is on its way, and leave `.grad` as it is; the hooks must be off."""
    bound = step.bound
    bound.flags.raise_if_bad()
    bound.votes.drain()
    is_loaded = bool(bound.replica.loaded.changed())
    if is_loaded:
        step.backward.overtake()
    with kept_replica.kept(bound) if is_loaded else nullcontext():  # what is late is of other weights
        served.step_aside(bound, step.parameters.late.asked())
        step.parameters.late.drain()
        bound.world.transport.leave()
        bound.state.take_rest(bound.plan)
        bound.replica.scale.forget()  # no GradScaler unscales what is late
        with _gradients_kept(step):
            while step.backward.drain():
                for optimizer in bound.replica.optimizers:
                    lay_out_as_parameters(optimizer)
                    optimizer.step()


def give_way(step: Step, algorithm: Algorithm) -> Bound:
    """The algorithm of a saved run on its model, which nothing moves that was on its way before."""
    bound = step.bound
    land_all(late.flight for late in step.backward.late)
    land_all(late.flight for late in step.parameters.late)
    bound.world.transport.leave()
    step.backward.release()
    return Bound(algorithm, bound.replica, bound.world, bound.norms)


@contextmanager
def _gradients_kept(step: Step) -> Iterator[None]:
    """Have `.grad` afterwards as it was before, in its own memory: late gradients pass through it."""
    step.backward.release()
    tensors = [item.parameter for item in step.bound.replica.parameters]
    kept = [tensor.grad for tensor in tensors]
    yield
    for tensor, gradient in zip(tensors, kept, strict=True):
        tensor.grad = gradient


def follow(old: Bound, algorithm: Algorithm, residuals: Residuals, *, from_start: bool = False) -> Bound:
    """Another algorithm on the same model, with what it takes over from the old one; its clock begins at 0.

    Args:
        old: which has come to rest.
        algorithm: to go on with.
        residuals: whether compressors' are carried over.
        from_start: go on as if it had run all the time, if that can be: then replicas stay as they are.
    """
    goes_on = from_start and _could_have_run(old, algorithm)
    if old.algorithm.lets_replicas_differ and not goes_on:
        replicas.equalise(old, moments=_kept_equal(old, algorithm))
    new = Bound(algorithm, old.replica, old.world, old.norms)
    if old.plan.buckets is not None and new.plan.buckets is None:
        new.lay_out(old.order)
    if goes_on:
        new.clock.step = old.clock.step
        _move(old, new, "payload")
    left = _residuals(old)
    if residuals == "carry":
        left -= _move(old, new, "compressor")
    if left:
        warn(
            f"switching from {old.algorithm.name} to {algorithm.name} drops what was left to send of "
            f"{', '.join(sorted(left)[:3])}{' …' if len(left) > 3 else ''}",
            CompositionWarning,
        )
    return new


def check_moments(old: Bound, algorithm: Algorithm, *, from_start: bool) -> None:
    """Raise NonFiniteError where `follow` would, while the old algorithm still runs: services begin once."""
    names = _kept_equal(old, algorithm)
    if names and old.algorithm.lets_replicas_differ and not (from_start and _could_have_run(old, algorithm)):
        replicas.check_moments(old, names)


def _kept_equal(old: Bound, algorithm: Algorithm) -> Collection[str]:
    return algorithm.kept_equal([item.name for item in old.replica.parameters], 0)


def _could_have_run(old: Bound, algorithm: Algorithm) -> bool:
    """Whether nothing was exchanged yet, and all that other rules build on is there: local progress alone."""
    return (
        algorithm.lets_replicas_differ
        and not old.state.exchanged
        and all(
            _has_base(old, item.name, algorithm.rules[index])
            for item in old.replica.parameters
            for index in algorithm.covering(item.name)
        )
    )


def _has_base(old: Bound, name: str, rule: Rule) -> bool:
    """Whether a rule could begin with a parameter as it is, or as it was kept since the start."""
    payloads = {type(old.algorithm.rules[index].payload) for index in old.algorithm.covering(name)}
    payload = rule.payload
    return rule.exchange.facts.same_result and (
        payload.facts.is_model or (payload.facts.has_base and type(payload) in payloads)
    )


def _move(old: Bound, new: Bound, role: str) -> set[str]:
    """Move slots of a role between rules of the same payload; names of the parameters whose slots are."""
    before: dict[type[Payload], list[Kept]] = defaultdict(list)
    for rule, kept in _kept(old, role):
        before[type(rule.payload)].append(kept)
    carried = set()
    for (index, unit), state in new.state.slots.items():
        rule = new.algorithm.rules[index]
        same, bucket, slots = before[type(rule.payload)], new.plan.bucket(unit), state[role]
        for name in slots:
            if is_buffer(name) or _is_fresh(rule, role, name):
                continue
            slots[name], found = carried_over(name, slots[name], bucket, same)
            carried |= found
        state.commit(True)
    return carried


def _is_fresh(rule: Rule, role: str, slot: str) -> bool:
    """Whether it is the exchange's, and made anew for the parameters, which are equal then."""
    return role == "compressor" and rule.exchange.facts.slots.get(slot) == "fresh"


def _kept(bound: Bound, role: str) -> Iterator[tuple[Rule, Kept]]:
    """The slots of a role, which mean the same under another algorithm."""
    for (index, unit), state in bound.state.slots.items():
        yield bound.algorithm.rules[index], (bound.plan.bucket(unit), state[role])


def _residuals(bound: Bound) -> set[str]:
    """Names of the parameters of which something is left to send."""
    left: set[str] = set()
    for rule, (bucket, slots) in _kept(bound, "compressor"):
        if not rule.exchange.keeps_residuals(rule.compressor):
            continue
        for slot, value in slots.items():
            if is_buffer(slot) or _is_fresh(rule, "compressor", slot):
                continue
            if value.numel() == bucket.numel:
                parts = zip(bucket.names, bucket.views(value), strict=True)
                left.update(name for name, part in parts if torch.count_nonzero(part))
            elif slot.endswith(".residual") and torch.count_nonzero(value):  # of a worker's part
                left.update(bucket.names)
    return left

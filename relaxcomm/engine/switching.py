"""From one algorithm to another in the middle of a run."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

import torch

from relaxcomm.algorithm import Algorithm, Rule
from relaxcomm.config import Config
from relaxcomm.engine import replicas
from relaxcomm.engine.agreement import compare, share
from relaxcomm.engine.fitting import check_model, check_switchable, fitted
from relaxcomm.engine.moving import Kept, moved
from relaxcomm.engine.run import Run
from relaxcomm.engine.window import Window
from relaxcomm.errors import CompositionWarning, ConfigError, RelaxcommError, UsageError
from relaxcomm.protocol import Payload, is_buffer

Residuals: TypeAlias = Literal["carry", "drop"]


def is_between_steps(window: Window) -> bool:
    """Whether no gradients are there that belong to the algorithm that runs."""
    run = window.run
    window.settle()  # or ranks that skipped their last step would be one behind
    return not (window.backward.begun or run.synchronised or run.unsynchronised)


def check_between_steps(window: Window) -> None:
    """Raise UsageError inside a step, on this rank: it may have issued what the others have not."""
    run = window.run
    if not is_between_steps(window):
        raise UsageError(
            f"the algorithm is switched in the middle of step {run.step}; switch after optimizer.step()"
        )


def choose(run: Run, settings: Config, algorithm: object, residuals: Residuals) -> Algorithm:
    """The algorithm to go on with, made for the model; or the same error on all ranks."""
    problem: RelaxcommError | None = None
    following: Algorithm | None = None
    graphs: dict[str, str] = {}
    try:
        if residuals not in get_args(Residuals):
            raise ConfigError(f"residuals={residuals!r} is not allowed; give 'carry' or 'drop'")
        settings = settings.with_algorithm(algorithm)
        world_size = run.transport.membership.world_size
        settings.check_world_size(world_size)
        graphs = settings.describe_topologies(world_size)
        following = fitted(run.model, settings.algorithm)
        check_model(run.model, run.optimizer, following)
        for one in (run.algorithm, following):
            check_switchable(one)
    except RelaxcommError as error:
        problem = error
    reports = share(run.transport, problem, (f"{following!r}, residuals={residuals}", graphs))
    wanted = [text for text, _ in reports]
    if len(set(wanted)) > 1:
        shown = "; ".join(f"rank {rank}: {one}" for rank, one in enumerate(wanted))
        raise ConfigError(f"ranks switch to different algorithms: {shown}")
    compare([theirs for _, theirs in reports])
    assert following is not None, "without one there is a problem"
    return following


def leave(window: Window) -> None:
    """Follow the loop no more, and apply everything that is on its way; `.grad` stays as it is."""
    window.unhook()
    with _gradients_kept(window.run):
        come_to_rest(window)
        window.backward.release()


def come_to_rest(window: Window) -> None:
    """Apply everything that is on its way; the hooks must be off."""
    window.run.votes.drain()
    window.step.drain()
    window.run.transport.leave()
    window.run.take_rest()
    while window.backward.drain():
        assert window.run.optimizer is not None, "attach refuses delays without an optimizer"
        window.run.optimizer.step()


@contextmanager
def _gradients_kept(run: Run) -> Iterator[None]:
    """Have `.grad` afterwards as it was before: late gradients pass through it."""
    tensors = [item.tensor for item in run.parameters]
    kept = [None if tensor.grad is None else tensor.grad.clone() for tensor in tensors]
    yield
    for tensor, gradient in zip(tensors, kept, strict=True):
        tensor.grad = gradient


def follow(old: Run, algorithm: Algorithm, residuals: Residuals) -> Run:
    """A run of another algorithm on the same model, with what it takes over from the old one."""
    if old.algorithm.lets_replicas_differ:
        replicas.equalise(old, moments=not algorithm.lets_replicas_differ)
    new = old.succeeded_by(algorithm)
    if old.buckets is not None and new.buckets is None:
        new.lay_out([name for bucket in old.buckets for name in bucket.names])
    left = _residuals(old)
    if residuals == "carry" and new.buckets is not None:
        _carry(old, new, left)
    if left:
        warnings.warn(
            f"switching from {old.algorithm.name} to {algorithm.name} drops what was left to send of "
            f"{', '.join(sorted(left)[:3])}{' …' if len(left) > 3 else ''}",
            CompositionWarning,
            stacklevel=3,
        )
    return new


def _carry(old: Run, new: Run, left: set[str]) -> None:
    """Move slots of compressors between rules of the same payload; what is moved is out of `left`."""
    assert new.buckets is not None
    before: dict[type[Payload], list[Kept]] = defaultdict(list)
    for rule, kept in _kept(old):
        before[type(rule.payload)].append(kept)
    for (index, unit), state in new.state.items():
        same = before[type(new.algorithm.rules[index].payload)]
        bucket, slots = new.buckets[unit], state["compressor"]
        for name in slots:
            if is_buffer(name):
                continue
            slots[name], found = moved(name, slots[name], bucket, same)
            left -= found
        state.commit(True)


def _kept(run: Run) -> Iterator[tuple[Rule, Kept]]:
    """The slots of compressors, which mean the same under another algorithm."""
    for (index, unit), state in run.state.items():
        assert run.buckets is not None, "state is made with the buckets"
        yield run.algorithm.rules[index], (run.buckets[unit], state["compressor"])


def _residuals(run: Run) -> set[str]:
    """Names of the parameters of which something is left to send."""
    return {
        name
        for rule, (bucket, slots) in _kept(run)
        if rule.compressor.keeps_rest
        for slot, value in slots.items()
        if not is_buffer(slot) and value.numel() == bucket.numel
        for name, part in zip(bucket.names, bucket.views(value), strict=True)
        if torch.count_nonzero(part)
    }

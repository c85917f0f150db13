"""What goes wrong on one rank before anything is exchanged goes wrong on all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from relaxcomm import errors
from relaxcomm.config import Config
from relaxcomm.engine.attaching.attached_models import all_attached
from relaxcomm.errors import CommunicationError, ConfigError, RelaxcommError
from relaxcomm.network import Transport
from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.named_parameters import Named, named_buffers


class Told:
    """What the processes tell each other in `sharing_errors`."""

    mine: Any = None
    """A picklable value of this one, to be set inside."""
    everyone: list[Any]
    """Of all, in their order; there afterwards."""


@contextmanager
def sharing_errors(transport: Transport, event: str, step: int | None = None) -> Iterator[Told]:
    """Do inside what may fail on one rank alone: then it fails on all; every rank must enter.

    Args:
        transport: to the others.
        event, step: where all ranks meet at the end, see `Transport.meet`.

    Raises: on every rank the same error, of the first problem's kind, if there is any; one that is not
        of relaxcomm's own is a CommunicationError on the other ranks.
    """
    told, problem = Told(), None
    try:
        yield told
    except Exception as error:
        problem = error
    is_own = isinstance(problem, RelaxcommError)
    what = None if problem is None else (type(problem).__name__, str(problem) if is_own else repr(problem))
    reports = transport.gather_all((what, told.mine), event, step)
    problems = {rank: report[0] for rank, report in enumerate(reports) if report[0] is not None}
    if problem is not None and not is_own:
        raise problem
    if problems:
        kinds = list(dict.fromkeys(problems.values()))
        if problem is not None and len(kinds) == 1 and len(problems) == len(reports):
            raise problem
        lines = "\n".join(f"rank {rank}: {text}" for rank, (_, text) in problems.items())
        kind: type[RelaxcommError] = getattr(errors, kinds[0][0], CommunicationError)
        raise kind(lines) from None
    told.everyone = [value for _, value in reports]


def compare(
    everyone: Sequence[Mapping[str, str]],
    advice: str = "give every rank the same model and configuration",
) -> None:
    """Raise the same error on every rank if what one has, or its order, is not what rank 0 has."""
    first = everyone[0]
    for rank, theirs in enumerate(everyone):
        for key in [*first, *theirs]:
            if first.get(key) != theirs.get(key):
                raise ConfigError(
                    f"ranks disagree on {key}: rank 0 has {first.get(key, 'none')}, rank {rank} has "
                    f"{theirs.get(key, 'none')}; {advice}"
                )
        for place, (ours, other) in enumerate(zip(first, theirs, strict=True)):
            if ours != other:
                kind = ours.split()[0]
                number = sum(key.split()[0] == kind for key in [*first][: place + 1])
                raise ConfigError(
                    f"ranks register {kind}s in different orders: number {number} is {ours} on rank 0, and "
                    f"{other} on rank {rank}; make modules, parameters and buffers in the same order on "
                    "every rank (sort what is iterated over: a set has another order in each process)"
                )


def digest(facts: Mapping[str, str]) -> str:
    """Differs where facts or their order do, which of a thousand tensors are 100 kB, times the ranks."""
    return hashlib.sha256(repr([*facts.items()]).encode()).hexdigest()


def fingerprint(model: nn.Module, named: Named, settings: Config, world_size: int) -> dict[str, str]:
    """What must be the same on all ranks, in this order, as readable text.

    Tensors are told apart by their places: buckets fill in the order of registration. Buffers that are not
    copied meet no others, and come last, by name.

    Args:
        model: that is attached.
        named: its parameters.
        settings: of the run.
        world_size: ranks, or replicas.
    """
    facts = {"algorithm": repr(settings.algorithm), "phases": repr(settings.phases)}
    facts |= {"bucket_bytes": str(settings.bucket_bytes)}
    facts["drift_guard"] = str(settings.drift_guard)
    facts["membership"] = str(settings.membership.model_copy(update={"secret": None}))  # its place may differ
    facts["metrics"] = "off" if settings.metrics is None else "on"  # the rest may differ between hosts
    facts |= settings.describe_topologies(world_size)
    for name, p in named:
        kind = "trainable" if p.requires_grad else "frozen"
        facts[f"parameter {name}"] = f"{list(p.shape)} {p.dtype} strides {list(p.stride())} {kind}"
    for name, b in sorted(named_buffers(model), key=_place):
        shape = list(b.shape) if can_be_copied(b) else "what is not copied, of"
        facts[f"buffer {name}"] = f"{shape} {b.dtype}"
    return facts


def _place(named: tuple[str, Tensor]) -> str:
    """By which buffers that are copied stay in order, and the others follow by name."""
    name, buffer = named
    return "" if can_be_copied(buffer) else name


def elastic_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """What must be the same where a worker joins: of a run with several engines it can join none.

    Its first `attach` would wait in one of them, while the others wait for it in the next.
    """
    return {**facts, "the engines attached before this one": str(len(all_attached()))}

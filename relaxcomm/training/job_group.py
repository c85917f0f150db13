"""The job's own process group, on which it waits and gathers results beside the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from relaxcomm.errors import CommunicationError
from relaxcomm.network.default_group import is_launched, make_default_group
from relaxcomm.network.secret import Secret
from relaxcomm.training.results import RankRecord


@contextmanager
def process_group(timeout_seconds: float, secret: Secret | None) -> Iterator[None]:
    """The job's own group, on which it waits and gathers results; the engine makes groups of its own."""
    if not is_launched():
        yield
        return
    make_default_group(timeout_seconds, secret)
    yield
    # Not in a `finally`: after a failure it could wait for ranks that are gone.
    dist.destroy_process_group()


def wait_for_all() -> None:
    """Go on when every rank is here.

    Raises: CommunicationError if one of them ended.
    """
    if dist.is_initialized():
        with _named_failure("the end of an evaluation"):
            dist.barrier()


def gather(record: RankRecord) -> list[RankRecord]:
    """The records of all ranks, in rank order, on every rank.

    Raises: CommunicationError if one of them ended.
    """
    if not dist.is_initialized():
        return [record]
    records: list[Any] = [None] * dist.get_world_size()
    with _named_failure("the exchange of results"):
        dist.all_gather_object(records, record)
    return records


@contextmanager
def _named_failure(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(
            f"another rank did not come to {what}; its own message says why ({str(error).splitlines()[0]})"
        ) from error

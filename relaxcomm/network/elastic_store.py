"""What a run tells in its store to workers that want to join it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.secret import Secret
from relaxcomm.network.signed_store import signed
from relaxcomm.network.store_client import await_store, no_frames
from relaxcomm.network.transport import Membership
from relaxcomm.system.network_interface import address_towards, use_interface_of
from relaxcomm.system.tcp import split_address

_KEY = "relaxcomm/run"
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Run:
    """An elastic run.

    Args:
        name: of where its ranks have met first.
        size: how many they were.
        facts: of model and configuration, which must be the same on all ranks.
        shown_as: its name among metrics.
    """

    name: str
    size: int
    facts: Mapping[str, str]
    shown_as: str


def publish(rendezvous: Rendezvous, facts: Mapping[str, str], shown_as: str) -> None:
    """Let workers join; rank 0 calls it."""
    run = Run(rendezvous.name, rendezvous.membership.world_size, dict(facts), shown_as)
    rendezvous.store.set(_KEY, json.dumps(asdict(run)))


def has_run(store: Any) -> bool:
    """Whether the workers of a run have met."""
    with no_frames():
        return bool(store.check([_KEY]))


def forget_run(store: Any) -> None:
    """Its workers are gone; others will meet."""
    store.delete_key(_KEY)


def connect(address: str, seconds: float, secret: Secret | None) -> Any:
    """The store at HOST:PORT.

    Args:
        address: HOST:PORT.
        seconds: the longest wait for it.
        secret: that all share, or None.

    Raises: ConfigError for what is no address; CommunicationError if no store answers there in time.
    """
    try:
        host, port = split_address(address)
    except ConfigError as error:
        raise ConfigError(f"RELAXCOMM_JOIN: {error}; give the address of a run's store") from None
    use_interface_of(address_towards(host))
    store = await_store(
        host,
        port,
        seconds,
        holder="a run",
        remedy="give the HOST:PORT that the run has printed, of a run that has not ended",
    )
    store.set_timeout(timedelta(seconds=seconds))
    return signed(store, secret)


def find(store: Any, address: str, seconds: float) -> Run:
    """The elastic run that was begun last with this store; waits until its workers have met.

    Raises: CommunicationError if there is none in so many seconds, or who holds the store has ended.
    """
    deadline = time.monotonic() + seconds
    try:
        while not has_run(store):
            if time.monotonic() > deadline:
                raise CommunicationError(
                    f"the store at {address} has told of no run that can be joined for {seconds:g} s "
                    "(timeout_seconds); start one with membership: {elastic: true}"
                )
            time.sleep(_LOOK_SECONDS)
        return Run(**json.loads(store.get(_KEY)))
    except dist.DistError:
        raise CommunicationError(f"the run at {address} has ended: its store answers no more") from None


def rendezvous_of(store: Any, run: Run, timeout_seconds: float, secret: Secret | None) -> Rendezvous:
    """Where the run's ranks have met, for a worker that has no rank yet."""
    limit, ranks = timedelta(seconds=timeout_seconds), tuple(range(run.size))
    return Rendezvous(store, run.name, Membership(-1, run.size), ranks, limit, limit, secret)

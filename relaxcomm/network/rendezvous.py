"""Where the processes of some ranks find each other, whatever becomes of others."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore

from relaxcomm.errors import ConfigError
from relaxcomm.network.secret import Secret
from relaxcomm.network.signed_store import UNSIGNED, SignedStore, signed
from relaxcomm.network.transport import Membership
from relaxcomm.system.environment import attempt_in_store

_MARGIN_SECONDS = 2.0  # torch gives up so much later than the engine, which says more
CONNECTING = 5
"""Gloo waits so many times its limit for a connection that another rank is to open."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the processes of some ranks find each other: they belong to no group of torch's, so that groups
    can be made and dropped while other ranks are gone.

    Args:
        store: which all can reach.
        name: the same on all ranks, and never used again.
        membership: this rank and how many there are.
        ranks: their numbers in the default group.
        limit: after which torch gives up an operation.
        making: the longest wait for another rank while a group is made.
        secret: that signs what they write to the store, or None.
    """

    store: Any
    name: str
    membership: Membership
    ranks: tuple[int, ...]
    limit: timedelta
    making: timedelta
    secret: Secret | None = None

    @classmethod
    def of(
        cls,
        process_group: Any,
        timeout_seconds: float,
        secret: Secret | None = None,
    ) -> Rendezvous:
        """Where the ranks of a group of torch's meet, on which nothing is sent.

        Args:
            process_group: None for the default one.
            timeout_seconds: the longest wait for another rank.
            secret: that all share, or None.
        """
        ranks = tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD))
        if dist.get_rank() not in ranks:
            raise ConfigError(
                f"rank {dist.get_rank()} is not in this process_group, which has the ranks "
                f"{', '.join(map(str, ranks))}; call attach on those alone"
            )
        mine = Membership(ranks.index(dist.get_rank()), len(ranks))
        # The store of the default group has no public accessor.
        store = dist.distributed_c10d._get_default_store()
        # It stands in each key, which every rank asks for of every other: as short for a thousand ranks.
        name = next_name(store, f"relaxcomm/{attempt_in_store()}/{_digest(ranks)}", mine.rank)
        store, name = _without_prefix(signed(store, secret), f"{name}/{UNSIGNED}name", secret)
        limit = timedelta(seconds=timeout_seconds + _MARGIN_SECONDS)
        return cls(store, name, mine, ranks, limit, limit, secret)

    def of_generation(
        self, number: int, worker: int, workers: Sequence[int], making: timedelta
    ) -> Rendezvous:
        """Where those meet who go on, when others are gone.

        Args:
            number: of the generation, never used before.
            worker: this one.
            workers: all of them, in the order of their ranks from now on.
            making: the longest wait for another rank while a group is made.
        """
        mine, store = Membership(workers.index(worker), len(workers)), self.store
        if isinstance(store, SignedStore):  # it keeps what is cloned of it: of each generation its own
            store = signed(store.underlying_store, self.secret)
        name = f"{self.name}/{number}"
        return replace(self, store=store, name=name, membership=mine, ranks=tuple(workers), making=making)

    def gloo(self, purpose: str) -> Any:
        """A Gloo group of all ranks, which must make the same ones in the same order.

        Raises: RuntimeError if one does not come, or cannot be connected to, within `making` each.
        """
        store, size = PrefixStore(f"{self.name}/{purpose}", self.store), self.membership.world_size
        if store.add("came", 1) == size:
            store.set("all came", "")
        store.wait(["all came"], self.making)
        made = ProcessGroupGloo(store, self.membership.rank, size, self.making / CONNECTING)
        set_limit(made, self.limit)
        return made


def next_name(store: Any, prefix: str, rank: int) -> str:
    """The name of the next rendezvous: the newest to which one of the ranks has come, or the one after it.

    It is counted in the store: of the processes some may be new, and others may have given up a rendezvous
    to which nobody else has come.

    Args:
        store: which all can reach; it need not sign: those with another secret use the same names.
        prefix: of the names of all that these ranks have.
        rank: of this one among them.
    """
    newest = f"{prefix}/newest"
    number = int(store.get(newest)) if store.check([newest]) else 0
    while store.add(f"{prefix}/{number}/came/{rank}", 1) > 1:
        number += 1
    store.set(newest, str(number))
    return f"{prefix}/{number}"


def set_limit(group: Any, limit: timedelta) -> None:
    """The longest wait of a Gloo group's operations from now on."""
    group._set_default_timeout(limit)  # set_timeout, the public name, is there from torch 2.9 on


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _without_prefix(store: Any, key: str, secret: Secret | None) -> tuple[Any, str]:
    """What can be reached without knowing the prefixes of the group's store, and a name of its own."""
    # Who comes first draws it, so that nobody waits here for a certain one. It is unsigned, since ranks find
    # out where they meet whether all have the secret, so it could be anybody's: as it is, it could name a
    # place where nothing is signed, or where ranks have met before, and its digest with its key cannot.
    drawn = store.compare_set(key, "", secrets.token_hex(8))
    while isinstance(store, PrefixStore | SignedStore):
        store = store.underlying_store
    return signed(store, secret), f"relaxcomm/{_digest((key, drawn))}"

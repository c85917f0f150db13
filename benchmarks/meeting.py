"""How often ranks ask their store while they meet: real transports over Gloo, between threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # which torch knows only then
from torch._C._distributed_c10d import HashStore, Store

from relaxcomm.network import TorchTransport
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.status import Status
from relaxcomm.network.transport import Membership

_LIMIT = timedelta(seconds=120)
_MINE = Status("waits", "waits at step 1, rule 0, unit 0, stage 0")


class CountingStore(Store):
    """Counts what one rank asks of a store: the round trips, and the bytes of the keys and values.

    Args:
        store: that all ranks share.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store, self._clones = store, list[CountingStore]()
        self._lock = threading.Lock()
        self.asked = self.moved_bytes = 0

    def _count(self, *parts: Any) -> None:
        with self._lock:
            self.asked += 1
            self.moved_bytes += sum(len(part) for part in parts)

    def set(self, key: str, value: Any) -> None:
        self._count(key, value)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(key)
        self._count(key, value)
        return value

    def add(self, key: str, amount: int) -> int:
        self._count(key)
        return int(self._store.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        self._count(*keys)
        return bool(self._store.check(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta = _LIMIT) -> None:
        self._count(*keys)
        self._store.wait(keys, timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        values: list[bytes] = self._store.multi_get(keys)
        self._count(*keys, *values)
        return values

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        self._count(*keys, *values)
        self._store.multi_set(keys, values)

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def clone(self) -> CountingStore:
        return self  # what its threads ask counts, too


def measure(size: int) -> dict[str, float]:
    """What one rank of `size` pays: the mean over the ranks; seconds are those of all, on these cores."""
    shared, name = HashStore(), _name(size)
    stores = [CountingStore(shared) for _ in range(size)]
    together = threading.Barrier(size)

    def one(rank: int) -> tuple[int, int]:
        rendezvous = Rendezvous(
            stores[rank], name, Membership(rank, size), tuple(range(size)), _LIMIT, _LIMIT
        )
        transport = TorchTransport(
            rendezvous, device=torch.device("cpu"), backend="gloo", timeout_seconds=60.0, debug=False
        )
        met = stores[rank].asked, stores[rank].moved_bytes
        transport._waiting.peers.announce(_MINE)
        together.wait()
        if rank == 0:  # what every rank does in each second in which it waits for a late one
            before = stores[0].asked
            transport._waiting.peers.missing(_MINE)
            looks.append(stores[0].asked - before)
        together.wait()
        transport.close()
        return met

    looks: list[int] = []
    begin = time.perf_counter()
    with ThreadPoolExecutor(size) as pool:
        counts = list(pool.map(one, range(size)))
    return {
        "seconds_of_all": time.perf_counter() - begin,
        "name_bytes": float(len(name)),
        "store_round_trips": sum(asked for asked, _ in counts) / size,
        "store_bytes": sum(moved for _, moved in counts) / size,
        "round_trips_a_look": float(looks[0]),
    }


def _name(size: int) -> str:
    """What the rendezvous of so many ranks is called."""
    dist.init_process_group("fake", store=HashStore(), rank=0, world_size=size)
    try:
        return Rendezvous.of(None, 60.0).name
    finally:
        dist.destroy_process_group()

"""hivemind: peers that find each other through a distributed hash table and average in groups."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from benchmarks.lab.contenders import Contender
from relaxcomm.system.network_interface import address_towards


def _sockets() -> set[Path]:
    return set(Path("/tmp").glob("hivemind-p2p*.sock"))


class _Peer:
    """This rank in the hash table, which begins on rank 0."""

    def __init__(self) -> None:
        import hivemind

        self._others = _sockets()
        dist.barrier()
        # The address is named so that it is not looked for outside of the lab.
        here = address_towards(os.environ["MASTER_ADDR"])
        place: dict[str, Any] = {"host_maddrs": [f"/ip4/{here}/tcp/0"], "start": True}
        first: list[Any] = [None, None]
        if dist.get_rank() == 0:
            self.dht = hivemind.DHT(**place)
            first = [str(uuid.uuid4()), [str(address) for address in self.dht.get_visible_maddrs()]]
        dist.broadcast_object_list(first)
        self.run: str = first[0]
        if dist.get_rank() != 0:
            self.dht = hivemind.DHT(initial_peers=first[1], **place)
        dist.barrier()

    def close(self) -> None:
        self.dht.shutdown()
        dist.barrier()
        for left in _sockets() - self._others:  # hivemind leaves them
            left.unlink(missing_ok=True)


class Hivemind(Contender):
    """hivemind.DecentralizedAverager over the parameters, called by every rank every few steps.

    Args:
        steps: between two averagings.
        matchmaking_seconds: for how long a group is looked for; a full group begins at once.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, steps: int, matchmaking_seconds: float = 3.0
    ) -> None:
        import hivemind

        super().__init__(model, optimizer)
        self._peer, self._steps, self._done, self._failed = _Peer(), steps, 0, 0
        self._parameters = [parameter.data for parameter in model.parameters()]
        self._averager = hivemind.averaging.DecentralizedAverager(
            [tensor.clone() for tensor in self._parameters],
            self._peer.dht,
            prefix=self._peer.run,
            target_group_size=dist.get_world_size(),
            min_matchmaking_time=matchmaking_seconds,
            request_timeout=matchmaking_seconds / 3,
            start=True,
        )
        dist.barrier()

    def after_step(self) -> None:
        self._done += 1
        if self._done % self._steps:
            return
        with self._averager.get_tensors() as shared:
            for ours, theirs in zip(shared, self._parameters, strict=True):
                ours.copy_(theirs)
        self._failed += not self._averages_with_all()
        with self._averager.get_tensors() as shared:
            for ours, theirs in zip(shared, self._parameters, strict=True):
                theirs.copy_(ours)

    def _averages_with_all(self) -> bool:
        import hivemind

        try:
            group = self._averager.step(timeout=60.0)
        except hivemind.averaging.partition.AllreduceException:  # it has found nobody, and trains on
            return False
        return group is not None and len(group) == dist.get_world_size()

    def note(self) -> str:
        return f"{self._failed} of {self._done // self._steps} averagings were not among all"

    def close(self) -> None:
        self._averager.shutdown()
        dist.barrier()
        self._peer.close()

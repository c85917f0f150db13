"""hivemind: peers that find each other through a distributed hash table and average in groups."""

from __future__ import annotations

import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from benchmarks.lab.rivals.address import own_address
from benchmarks.lab.rivals.base import Contender


class _Peer:
    """This rank in the hash table, which begins on rank 0."""

    def __init__(self) -> None:
        import hivemind

        # Futures travel between its processes as shared memory: by file descriptor, one that a process sends
        # as it ends can no longer be opened by its receiver, whose shutdown then waits for 3 s.
        self._sharing = torch.multiprocessing.get_sharing_strategy()
        torch.multiprocessing.set_sharing_strategy("file_system")
        # The address is named so that it is not looked for outside of the lab.
        place: dict[str, Any] = {"host_maddrs": [f"/ip4/{own_address()}/tcp/0"], "start": True}
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
        torch.multiprocessing.set_sharing_strategy(self._sharing)
        dist.barrier()


class HivemindOptimizer(Contender):
    """hivemind.Optimizer with local updates: it averages in the background, when the swarm has done its steps.

    Args:
        steps: of each rank between two averagings, about: peers hear of each other's progress with delay.
        matchmaking_seconds: for how long a group is looked for.
        refresh_seconds: how often progress is looked up at least.
        delay: whether training goes on while parameters are averaged.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        steps: int,
        matchmaking_seconds: float = 3.0,
        refresh_seconds: float = 0.5,
        delay: bool = True,
    ) -> None:
        import hivemind

        self._peer = _Peer()
        self._hivemind = hivemind.Optimizer(
            dht=self._peer.dht,
            run_id=self._peer.run,
            optimizer=optimizer,
            use_local_updates=True,
            # One "sample" is one step here.
            batch_size_per_step=1,
            target_batch_size=steps * dist.get_world_size(),
            matchmaking_time=matchmaking_seconds,
            averaging_timeout=60.0,
            delay_state_averaging=delay,
            averager_opts={"target_group_size": dist.get_world_size()},
            tracker_opts={"min_refresh_period": refresh_seconds},
        )
        super().__init__(model, self._hivemind)

    def note(self) -> str:
        return f"{self._hivemind.local_epoch} averagings begun"

    def close(self) -> None:
        self._hivemind.shutdown()
        dist.barrier()
        self._peer.close()


class HivemindAverager(Contender):
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
        group = self._averager.step(timeout=60.0)
        self._failed += group is None or len(group) < dist.get_world_size()
        with self._averager.get_tensors() as shared:
            for ours, theirs in zip(shared, self._parameters, strict=True):
                theirs.copy_(ours)

    def note(self) -> str:
        return f"{self._failed} of {self._done // self._steps} averagings were not among all"

    def close(self) -> None:
        self._averager.shutdown()
        dist.barrier()
        self._peer.close()

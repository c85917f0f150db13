"""torchft: replicas that agree through a lighthouse, and average their parameters every few steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from benchmarks.lab.contenders import Contender
from relaxcomm.system.network_interface import address_towards

_TIMEOUT = timedelta(seconds=120)


class _Replica:
    """This rank as a replica group of its own: its store, its manager and, on rank 0, the lighthouse."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        from torchft import Manager, ProcessGroupGloo, ProcessGroupNCCL
        from torchft.coordination import LighthouseServer

        here = address_towards(os.environ["MASTER_ADDR"])
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._lighthouse = None
        address: list[str | None] = [None]
        if rank == 0:
            # As in torchft's README, but that a quorum is everybody.
            self._lighthouse = LighthouseServer(
                bind="0.0.0.0:0", min_replicas=world_size, quorum_tick_ms=100, join_timeout_ms=10_000
            )
            address[0] = f"http://{here}:{self._lighthouse.address().rsplit(':', 1)[1]}"
        dist.broadcast_object_list(address)
        self._store = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
        is_on_gpu = next(model.parameters()).is_cuda
        self._group = (ProcessGroupNCCL if is_on_gpu else ProcessGroupGloo)(timeout=_TIMEOUT)
        self.manager = Manager(
            pg=self._group,
            load_state_dict=lambda saved: _load(model, optimizer, saved),
            state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            min_replica_size=world_size,
            use_async_quorum=False,
            timeout=_TIMEOUT,
            quorum_timeout=_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=here,
            store_port=self._store.port,
            lighthouse_addr=address[0],
            replica_id=f"replica_{rank}",
            hostname=here,
            init_sync=False,  # as documented where all start from equal parameters
        )

    def note(self) -> str:
        return f"{self.manager.current_step()} averagings committed"

    def close(self) -> None:
        dist.barrier()  # nobody leaves, and changes the quorum, while another still averages
        self.manager.shutdown()
        self._group.shutdown()
        dist.barrier()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def _load(model: nn.Module, optimizer: Optimizer, saved: dict[str, Any]) -> None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


class _OverReplica(Contender):
    """A method of torchft that is entered for a whole trial.

    Args:
        method: of the replica's manager.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, method: Callable[[Any], AbstractContextManager[Any]]
    ) -> None:
        super().__init__(model, optimizer)
        self._replica = _Replica(model, optimizer)
        self._method = method(self._replica.manager)
        self._method.__enter__()

    def note(self) -> str:
        return self._replica.note()

    def close(self) -> None:
        self._method.__exit__(None, None, None)
        self._replica.close()


class TorchftLocalSGD(_OverReplica):
    """torchft's LocalSGD.

    Args:
        steps: between two averagings.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, steps: int) -> None:
        from torchft.local_sgd import LocalSGD

        super().__init__(
            model, optimizer, lambda manager: LocalSGD(manager, model, optimizer, sync_every=steps)
        )


class TorchftDiLoCo(_OverReplica):
    """torchft's DiLoCo, with the outer optimizer of its example: Nesterov's momentum.

    Args:
        steps: between two averagings.
        outer_learning_rate: of the outer SGD.
        outer_momentum: of the outer SGD.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        steps: int,
        outer_learning_rate: float = 0.7,
        outer_momentum: float = 0.9,
    ) -> None:
        from torchft.local_sgd import DiLoCo

        outer = torch.optim.SGD(
            model.parameters(), lr=outer_learning_rate, momentum=outer_momentum, nesterov=True
        )
        # One message for the whole model; with several buckets 0.2.0 lets the replicas drift apart, but its
        # default bucket is larger than any model.
        super().__init__(
            model,
            optimizer,
            lambda manager: DiLoCo(
                manager, [model], optimizer, outer, sync_every=steps, use_bucketization=True
            ),
        )

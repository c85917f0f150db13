"""One rank of many that all do what it does: what each of a thousand pays, measured in one process."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from relaxcomm.network import Transport
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.operations import (
    Agree,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Label,
    Neighbors,
    Operation,
    Received,
)
from relaxcomm.network.transport import Membership, Pending, Service, ServiceKey


class _Here(Pending):
    def __init__(self, received: Received) -> None:
        self._received = received

    def arrived(self) -> bool:
        return True

    def wait(self) -> Received:
        return self._received


class Mirror(Transport):
    """Brings at once what came if all ranks had sent the same; it counts what this one does.

    Args:
        rank: of this one.
        world_size: number of ranks.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._membership = Membership(rank, world_size)
        self.counters = ByteCounters()
        self.messages = 0
        """Handed to the network; one for each neighbour, and one for each operation of all ranks."""
        self.gathered_bytes = 0
        """Taken at events, from all ranks together."""

    @property
    def membership(self) -> Membership:
        return self._membership

    def now(self) -> float:
        return time.perf_counter()

    def issue(self, operation: Operation, label: Label) -> Pending:
        self.counters.add(label.rule, *self.traffic(operation))
        self.messages += len(operation.sends) if isinstance(operation, Neighbors) else 1
        return _Here(self._received(operation))

    def serve(self, key: ServiceKey, service: Service, request: Tensor, reply: Tensor) -> None:
        raise NotImplementedError("others would ask other things than this rank")

    def leave(self) -> None:
        pass

    def meet(self, event: str, step: int | None = None) -> None:
        pass

    def gather_objects(self, value: object, event: str, step: int | None = None) -> list[object]:
        data, size = pickle.dumps(value), self._membership.world_size
        self.gathered_bytes += size * len(data)
        return [pickle.loads(data) for _ in range(size)]

    def announce(self, status: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _received(self, operation: Operation) -> Received:
        size = self._membership.world_size
        if isinstance(operation, AllReduce | Agree):
            return operation.tensor.mul_(size) if operation.reduction == "sum" else operation.tensor
        if isinstance(operation, AllGather):
            return torch.stack([operation.tensor] * size)
        if isinstance(operation, AllToAll):
            return torch.stack([operation.tensor[self._membership.rank]] * size)
        if isinstance(operation, Broadcast):
            return operation.tensor
        assert isinstance(operation, Neighbors)
        return _from_neighbors(operation.sends, operation.receives)


def _from_neighbors(sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
    sent = next(iter(sends.values()), None)
    return {peer: buffer if sent is None else sent.clone() for peer, buffer in receives.items()}

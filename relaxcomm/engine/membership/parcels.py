"""Values that ranks hand to each other as bytes, of which nothing is run."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from relaxcomm.errors import ConfigError
from relaxcomm.network.byte_counters import RECOVERY
from relaxcomm.network.operations import Broadcast, Label, Neighbors
from relaxcomm.step.world import World


def receive_shared(world: World, root: int, mine: Any = None) -> Any:
    """A value of one rank's, on all."""
    content = encoded(mine)
    sizes = world.gather(len(content), RECOVERY)
    raw = content if world.rank == root else torch.empty(sizes[root], dtype=torch.uint8)
    world.run(Broadcast(raw, root, on_host=True), Label(0, RECOVERY, 0))
    return decoded(raw)


def pass_on(world: World, parcels: Mapping[int, Tensor]) -> dict[int, Any]:
    """Send values to other ranks; every rank calls it.

    Args:
        world: the ranks.
        parcels: what `encoded` has made, by the rank that is to have it.

    Returns: what came for this rank, by the rank that has sent it.
    """
    sizes = world.gather({rank: len(one) for rank, one in parcels.items()}, RECOVERY)
    takes = {
        rank: torch.empty(theirs[world.rank], dtype=torch.uint8)
        for rank, theirs in enumerate(sizes)
        if world.rank in theirs
    }
    pending = world.issue(Neighbors(parcels, takes, on_host=True), Label(0, RECOVERY, 1))
    came = cast("Mapping[int, Tensor]", world.receive(pending))
    return {rank: decoded(raw) for rank, raw in came.items()}


def encoded(value: Any) -> Tensor:
    """A state as bytes."""
    content = io.BytesIO()
    torch.save(_without_numpy(value), content)
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


def _without_numpy(value: Any) -> Any:
    """A state with plain numbers in the place of NumPy's, which schedules of rates may give."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _without_numpy(one) for key, one in value.items()}
    return type(value)(map(_without_numpy, value)) if type(value) in (list, tuple) else value


def decoded(raw: Tensor) -> Any:
    """The state in some bytes, on the host; nothing in them is run.

    Raises: ConfigError for what only code could make again.
    """
    content = io.BufferedReader(_Content(raw))
    try:
        return torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        content.seek(0)
        names = ", ".join(get_unsafe_globals_in_checkpoint(content))
        raise ConfigError(
            f"what another rank has sent has {names}, which is not made here, as that would run code; let "
            "state_dict() of the model and the optimizers give tensors, numbers and text in lists and dicts"
        ) from None


class _Content(io.RawIOBase):
    """Bytes as a file, without a copy of them all: beside a state they are as large once more.

    Args:
        raw: the bytes.
    """

    def __init__(self, raw: Tensor) -> None:
        self._bytes, self._at = raw.numpy().data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._bytes)}[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        part = self._bytes[self._at : self._at + len(into)]
        into[: len(part)] = part
        self._at += len(part)
        return len(part)

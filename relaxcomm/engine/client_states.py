"""What clients keep between rounds, for other ranks that play them from now on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import torch

from relaxcomm.data import RoundPlan
from relaxcomm.engine.survival import RECOVERY, decoded, encoded
from relaxcomm.network.operations import Label, Neighbors
from relaxcomm.replica.replica import Replica
from relaxcomm.step.world import World

States: TypeAlias = Mapping[int, Mapping[str, Any]]


def share_out(plan: RoundPlan, replica: Replica, world: World, *, rank_before: int) -> None:
    """Bring each client's optimizer state to the rank that plays it now; every rank calls it.

    Clients of ranks that are lost begin anew. Where each worker is a client, its state stays with it.

    Args:
        plan: which clients there are.
        replica: whose optimizers.
        world: the ranks now.
        rank_before: of this worker; -1 for one that was not there.
    """
    if plan.clients is None:
        replica.clients.keep({rank_before: world.rank})
        return
    mine = {} if rank_before < 0 else replica.clients.export()
    came = _exchanged(mine, world)
    replica.clients.keep({client: client for client in mine if client % world.size == world.rank})
    replica.clients.restore(came)


def _exchanged(mine: States, world: World) -> States:
    """The states of clients that this rank plays from now on, from those who have them."""
    parcels = {
        rank: encoded({client: state for client, state in mine.items() if client % world.size == rank})
        for rank in {client % world.size for client in mine} - {world.rank}
    }
    sizes = world.gather({rank: len(one) for rank, one in parcels.items()}, RECOVERY)
    takes = {
        other: torch.empty(theirs[world.rank], dtype=torch.uint8)
        for other, theirs in enumerate(sizes)
        if world.rank in theirs
    }
    pending = world.issue(Neighbors(parcels, takes, on_host=True), Label(0, RECOVERY, 2))
    came = cast("Mapping[int, torch.Tensor]", world.receive(pending))
    return {client: state for one in came.values() for client, state in decoded(one).items()}

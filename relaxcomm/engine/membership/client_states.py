"""What clients keep between rounds, for other ranks that play them from now on."""

from __future__ import annotations

from relaxcomm.data import RoundPlan
from relaxcomm.engine.membership.parcels import encoded, pass_on
from relaxcomm.replica.replica import Replica
from relaxcomm.step.world import World


def share_out(plan: RoundPlan | None, replica: Replica, world: World, *, rank_before: int) -> None:
    """Bring each client's optimizer state to the rank that plays it now; every rank calls it.

    Clients of ranks that are lost begin anew. Where each worker is a client, its state stays with it.

    Args:
        plan: which clients there are; None where none are played.
        replica: whose optimizers.
        world: the ranks now.
        rank_before: of this worker; -1 for one that was not there.
    """
    if plan is None:
        return
    if plan.clients is None:
        replica.clients.keep({rank_before: world.rank})
        return
    mine = {} if rank_before < 0 else replica.clients.export()
    parcels = {
        rank: encoded({client: state for client, state in mine.items() if client % world.size == rank})
        for rank in {client % world.size for client in mine} - {world.rank}
    }
    came = pass_on(world, parcels)
    replica.clients.keep({client: client for client in mine if client % world.size == world.rank})
    for states in came.values():
        replica.clients.restore(states)

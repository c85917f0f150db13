"""What a loader tells an algorithm, and what the algorithm chooses for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from relaxcomm.data import ClientLoader, ShareLoader
from relaxcomm.data.clients import CLIENT, ROUND, ROUND_LEFT
from relaxcomm.replica.replica import Replica
from relaxcomm.roles.controller import BATCH_SIZE
from relaxcomm.step.bound import Bound

Event: TypeAlias = Callable[[str, Mapping[str, float]], None]


def connect(bound: Bound, loader: ShareLoader | ClientLoader, event: Event) -> None:
    """Have a loader tell of what it gives out, and listen to what the algorithm chooses.

    Args:
        bound: the algorithm.
        loader: of training data.
        event: told when a client and a round have ended.
    """
    loader.on_batch = bound.world.statistics.given
    if isinstance(loader, ClientLoader):
        bound.controllers.follow_loader()
        loader.on_client_begin = _Players(bound.replica).begin
        loader.on_client_end = lambda samples: event(CLIENT, {"samples": samples})
        loader.on_round_end = lambda: event(ROUND, {})
        loader.on_round_left = lambda: event(ROUND_LEFT, {})
    elif BATCH_SIZE in bound.algorithm.needs:
        bound.controllers.follow_loader()
        bound.controllers.follow(BATCH_SIZE, loader.sizes.batch_size, loader.sizes.resize)

        def given(samples: int) -> None:
            bound.world.statistics.given(samples)
            bound.controllers.given(samples)

        loader.on_batch = given


class _Players:
    """Each client's own optimizer state, of which one is in use at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def begin(self, client: int) -> None:
        """Put a client's state into the optimizers."""
        for optimizer, state in zip(self._replica.optimizers, self._replica.states_of(client), strict=True):
            optimizer.state = state

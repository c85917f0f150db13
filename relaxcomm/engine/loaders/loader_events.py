"""What a loader tells an algorithm, and what the algorithm chooses for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch

from relaxcomm.data import ClientLoader, ShareLoader
from relaxcomm.data.loader import nothing
from relaxcomm.engine.loop.scaler_sharing import close_skipped_steps
from relaxcomm.engine.reporting.run_warnings import warn_of_read_on
from relaxcomm.roles.controller import BATCH_SIZE
from relaxcomm.step.bound import Bound

Event: TypeAlias = Callable[[str, Mapping[str, float]], None]


def connect(now: Callable[[], Bound], loader: ShareLoader | ClientLoader, event: Event) -> None:
    """Have a loader tell of what it gives out, and listen to what the algorithm chooses.

    Args:
        now: tells of the algorithm.
        loader: of training data.
        event: told when a client and a round have ended.
    """
    bound = now()

    def given(samples: int) -> None:
        if now().algorithm.controllers:
            close_skipped_steps(bound.replica.scaler)  # which are not of this batch
            now().controllers.given(samples)
        now().world.statistics.given(samples)

    loader.on_batch = given
    if isinstance(loader, ClientLoader):
        bound.controllers.follows_loader = True
        loader.on_client_begin = bound.replica.clients.put_in
        loader.on_event = event
    elif BATCH_SIZE in bound.algorithm.needs:
        bound.controllers.follows_loader = True
        bound.controllers.follow(BATCH_SIZE, loader.sizes.batch_size, loader.sizes.resize)


def disconnect(bound: Bound, loaders: Iterable[ShareLoader | ClientLoader]) -> None:
    """After the end of the run: have loaders tell of nothing but that they are read on for training."""
    warned = bound.world.process.rank > 0

    def given(_: int) -> None:
        nonlocal warned
        if not warned and torch.is_grad_enabled():
            warned = True
            warn_of_read_on()

    for loader in loaders:
        loader.on_begin, loader.on_batch = nothing, given
        if isinstance(loader, ClientLoader):
            loader.on_client_begin = loader.on_event = nothing

"""What the engine learns from the loader, and what it tells it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from relaxcomm.data import ClientLoader, ShareLoader
from relaxcomm.engine.run import Run
from relaxcomm.engine.step import Step
from relaxcomm.errors import UsageError
from relaxcomm.primitives.controllers import BATCH_SIZE


def attach_loader(
    run: Run, step: Step, loader: ShareLoader | ClientLoader, batch_size: int
) -> ShareLoader | ClientLoader:
    """Let a loader count samples, follow the batch size and report clients and rounds.

    Raises: UsageError for a second loader where only one can be followed.
    """
    follows = isinstance(loader, ClientLoader) or BATCH_SIZE in run.algorithm.needs
    if follows and run.follows_loader:
        raise UsageError(
            f"{run.algorithm.name} follows the training data's loader, and this is a second one; use a plain "
            "DataLoader for evaluation"
        )
    run.follows_loader = run.follows_loader or follows
    loader.on_batch = run.statistics.consumed
    if isinstance(loader, ClientLoader):
        players = _Players(run)
        loader.on_client_begin = players.begin
        loader.on_client_end = lambda samples: step.mark("client", {"samples": samples})
        loader.on_round_end = lambda: step.mark("round", {})
    elif follows:
        run.control.follow(BATCH_SIZE, batch_size, loader.sizes.resize)
    return loader


class _Players:
    """Each client's own optimizer state, of which one is in the optimizer at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def begin(self, client: int) -> None:
        """Put a client's state into the optimizer."""
        optimizer = self._run.optimizer
        assert optimizer is not None, "attach refuses rules of parameters without an optimizer"
        states: dict[int, Any] = self._run.client_states
        optimizer.state = states.setdefault(client, defaultdict(dict))

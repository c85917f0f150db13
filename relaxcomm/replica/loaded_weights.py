"""Weights that the training loop loads into an attached model between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import UsageError
from relaxcomm.replica.named_parameters import param_groups
from relaxcomm.tensors.buckets import Item
from relaxcomm.tensors.digest import checksum


class LoadedWeights:
    """Notices that a load has changed parameters since the last step, which a base makes local progress.

    What is loaded for an evaluation, and put back before the next step, does not count.

    Args:
        parameters: that are trained.
        optimizers: of them.
        reshard: called before parameters are read.
    """

    def __init__(
        self, parameters: Sequence[Item], optimizers: Sequence[Optimizer], reshard: Callable[[], None]
    ) -> None:
        self._parameters, self._optimizers, self._reshard = parameters, optimizers, reshard
        self._before: list[Tensor] | None = None  # checksums, from the first load since the last step on
        self._ignores = self._is_restored = False

    def note(self) -> None:
        """A load is about to begin, into the model or a part of it."""
        is_known = self._ignores or self._is_restored or self._before is not None
        if not (is_known or self._is_evaluated()):
            self._before = self._checksums()

    def check(self, algorithm: Algorithm, step: int) -> None:
        """Before the engine changes parameters: look at what was loaded since it last did.

        Raises: UsageError if it has changed them, where the algorithm moves them from a base.
        """
        before, self._before = self._before, None
        if before is None or not any(
            rule.payload.facts.has_base and rule.is_active(step) for rule in algorithm.rules
        ):
            return
        pairs = zip(self._parameters, before, self._checksums(), strict=True)
        if changed := [item.name for item, old, new in pairs if old != new]:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise UsageError(
                f"load_state_dict() has changed {changed[0]}{more} before step {step}, and {algorithm.name}, "
                "which moves parameters from where they were, would take it for what this rank has trained. "
                "Close the engine, load, and attach again; to go on with a saved run use "
                "engine.load_run_state_dict() or relaxcomm.checkpoint.load(), or load the engine's state, too"
            )

    def forget(self, *, is_restored: bool = False) -> None:
        """What was loaded belongs to what the engine goes on from.

        Args:
            is_restored: whether the engine's own state was loaded, to which others may follow before a step.
        """
        self._before, self._is_restored = None, is_restored

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Notice no loads inside, whose end puts everything back."""
        before, self._ignores = self._ignores, True
        try:
            yield
        finally:
            self._ignores = before

    def _is_evaluated(self) -> bool:
        """Whether a schedule-free optimizer holds other parameters there than those that are trained."""
        return any(not group.get("train_mode", True) for group in param_groups(self._optimizers))

    def _checksums(self) -> list[Tensor]:
        self._reshard()
        return list(torch.stack([checksum(item.tensor).cpu() for item in self._parameters]))

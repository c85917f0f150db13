"""Which optimizers have had their turn in a step: they have stepped, or a GradScaler has skipped them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from torch.optim import Optimizer

from relaxcomm.errors import UsageError
from relaxcomm.replica.grad_scaler import Note, is_stepped, note_of
from relaxcomm.replica.named_parameters import param_groups
from relaxcomm.replica.replica import Replica

_MOST_OTHERS = 32


class OptimizerTurns:
    """Follows the optimizers that end a step of the engine together.

    That the scale fell does not tell whose step was skipped: several engines may share the scaler, and the
    scale may grow meanwhile, or be set by hand. What the scaler notes of each optimizer does.

    Args:
        replica: whose optimizers, and the scaler that steps them.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.stepped: list[Optimizer] = []
        """The optimizers that have stepped in this step."""
        self.backwards = 0
        """The backwards since the last step ended."""
        self._notes: dict[Optimizer, Note] = {}
        self._others = 0  # steps of others in a row
        self._counts = True  # whether these are counted

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Inside, others may step as often as they like: what they move is an inner loop's, or put back."""
        before, self._counts = self._counts, False
        try:
            yield
        finally:
            self._counts = before

    def other_steps(self, optimizer: Optimizer) -> None:
        """Another optimizer has stepped, which a few times in a row may be an inner loop's.

        Raises: UsageError if one alone steps what is trained, so that no step of the engine ever ends.
        """
        if not self._counts:
            return
        theirs = {id(p) for group in optimizer.param_groups for p in group["params"][:1]}
        ours = chain.from_iterable(group["params"] for group in param_groups(self._replica.optimizers))
        if theirs.isdisjoint(map(id, ours)):
            return
        self._others += 1
        if self._others >= _MOST_OTHERS:
            raise UsageError(
                f"{type(optimizer).__name__} has stepped the parameters {self._others} times in a row, and "
                "none of the optimizers that were given to attach() has, so nothing is exchanged; close the "
                "engine, and attach again with the new optimizer"
            )

    def watch(self) -> None:
        """A backward has ended: what the scaler notes from now on is of the step that comes."""
        self.backwards += 1
        if self._replica.scaler is None:
            return
        for optimizer in self._replica.optimizers:
            note = note_of(self._replica.scaler, optimizer)
            # Stepped before: the backward is of another model, such as a generator's, through this one.
            if note is not None and not (self._is_done(optimizer) or is_stepped(note)):
                self._notes[optimizer] = note

    @property
    def are_over(self) -> bool:
        """Whether all have had their turn."""
        optimizers = self._replica.optimizers
        if len(self.stepped) == len(optimizers):  # none steps twice
            return True
        return all(one in self.stepped or self._is_done(one) for one in optimizers)

    @property
    def have_skipped(self) -> bool:
        """Whether they are over, and not all have stepped."""
        return any(map(self._is_done, self._notes)) and self.are_over

    def begin_anew(self) -> None:
        """The step has ended."""
        self.stepped, self._others, self.backwards = [], 0, 0
        self._notes.clear()

    def _is_done(self, optimizer: Optimizer) -> bool:
        return optimizer in self._notes and is_stepped(self._notes[optimizer])

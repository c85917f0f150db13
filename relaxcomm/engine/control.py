"""Controllers: what they see of their rules, averaged over the ranks, becomes named values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.network.operations import Agree, Label
from relaxcomm.network.transport import Pending
from relaxcomm.roles import Context, Seen

if TYPE_CHECKING:
    from relaxcomm.engine.run import Run


class Control:
    """Adds up what controllers see in a step, sends it once, and reads the answer when the step ends.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._controllers = run.algorithm.controllers
        self.values: dict[str, float] = {}
        self._seen: dict[int, Tensor] = {}
        self._sent: tuple[int, ...] = ()
        self._listeners: dict[str, Callable[[float], None]] = {}
        self._pending: Pending | None = None
        self._given = self._given_before = 0

    @property
    def samples(self) -> int | None:
        """Samples of this step's batches; of the last one's where the loop reads batches ahead of time."""
        return self._given or self._given_before or None

    def given(self, samples: int) -> None:
        """The loader has given a batch."""
        self._given += samples

    @property
    def watches_micro_gradients(self) -> bool:
        """Whether a controller looks at the gradients that are accumulated in a step, one by one."""
        return any(controller.needs_micro_gradients for controller in self._controllers)

    def watches(self, rule: int) -> bool:
        """Whether a controller watches a rule."""
        return any(controller.rule == rule for controller in self._controllers)

    def see(self, rule: int, cx: Context, seen: Seen) -> None:
        """Show what became of a bucket to the controllers that watch its rule."""
        for index, controller in enumerate(self._controllers):
            if controller.rule == rule:
                found = controller.observe(cx, seen).double().cpu()
                self._seen[index] = self._seen[index] + found if index in self._seen else found

    def send(self) -> None:
        """Issue one agreement for all that was seen since the last one."""
        if not self._seen:
            return
        self._receive()
        self._sent = tuple(sorted(self._seen))
        message = torch.cat([self._seen[index] for index in self._sent])
        self._sizes = [self._seen[index].numel() for index in self._sent]
        self._seen = {}
        self._pending = self._run.transport.issue(Agree(message, "sum"), Label(self._run.step, "control"))

    def follow(self, name: str, first: float, listener: Callable[[float], None]) -> None:
        """Let a value exist, and tell a listener of it now and whenever it changes."""
        self._listeners[name] = listener
        self._write({name: self.values.get(name, first)})

    def check_needs(self) -> None:
        """Raise UsageError if a value does not exist that a controller needs."""
        if self._run.algorithm.plan is not None and not self._run.follows_loader:
            raise UsageError(
                f"{self._run.algorithm.name} plays clients in turn, so the training data must come from "
                "engine.loader(dataset, batch_size=…)"
            )
        missing = self._run.algorithm.needs - self.values.keys()
        if missing:
            raise UsageError(
                f"{self._run.algorithm.name} chooses {', '.join(sorted(missing))} itself, so the "
                "training data must come from engine.loader(dataset, batch_size=…)"
            )

    def restore(self, values: Mapping[str, float]) -> None:
        """Put saved values back."""
        self._write(values)

    def _write(self, values: Mapping[str, float]) -> None:
        self.values.update(values)
        for name in values.keys() & self._listeners.keys():
            self._listeners[name](values[name])

    def close(self) -> None:
        """The step has ended: decide."""
        self._receive()
        self._given_before, self._given = self._given or self._given_before, 0

    def _receive(self) -> None:
        if self._pending is None:
            return
        with self._run.statistics.waiting():
            total = self._pending.wait()
        self._pending = None
        assert isinstance(total, Tensor)
        for index, part in zip(self._sent, torch.split(total, self._sizes), strict=True):
            controller = self._controllers[index]
            if bool(torch.isfinite(part).all()):  # else the window is not committed, and nothing was learnt
                cx = self._run.context(self._run.algorithm.rules[controller.rule])
                self._write(controller.decide(cx, part))

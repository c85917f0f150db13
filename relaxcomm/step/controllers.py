"""Controllers: what they see of their rules, added up over the ranks, becomes named values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import UsageError
from relaxcomm.replica.accumulation import Accumulation
from relaxcomm.replica.replica import Replica
from relaxcomm.roles import Context, ExchangedBucket
from relaxcomm.roles.returned import added, written
from relaxcomm.step.agreements import Agreements, Answer


class Controllers:
    """Adds up what controllers see in a step, asks all ranks once, and lets them decide when the step ends.

    Args:
        algorithm: whose controllers.
        replica: whose accumulated gradients some of them look at.
        values: where they write, by name.
        agreements: that carry what they have seen.
    """

    def __init__(
        self, algorithm: Algorithm, replica: Replica, values: dict[str, float], agreements: Agreements
    ) -> None:
        self._algorithm, self._replica, self._agreements = algorithm, replica, agreements
        self._controllers = algorithm.controllers
        self._watched = frozenset(controller.rule for controller in self._controllers)
        self._plays_clients = algorithm.round_plan is not None
        self._chooses_batches = algorithm.chooses_batches
        self._values = values
        for controller in self._controllers:
            values.update(controller.init_values())
        needs_micro = any(controller.facts.needs_micro_gradients for controller in self._controllers)
        self.accumulation = Accumulation(replica.parameters if needs_micro else ())
        """The gradients that a step accumulates, where a controller looks at them one by one."""
        self._observed: dict[int, Tensor] = {}
        self._asked: list[tuple[int, Answer]] = []
        self._listeners: dict[str, Callable[[float], None]] = {}
        self.follows_loader = False
        """Whether the training data come from the engine's loader."""
        self._given = self._given_before = 0

    def watches(self, rule: int) -> bool:
        """Whether a controller watches a rule."""
        return rule in self._watched

    def observe(self, rule: int, cx: Context, unit: int, local: Tensor | None, result: Tensor) -> None:
        """Show what became of a bucket to the controllers that watch its rule.

        Args:
            rule: its index.
            cx: what the controllers may know.
            unit: index of the bucket.
            local: what this worker has put in, for rules of gradients.
            result: the combined result.
        """
        for index, controller in enumerate(self._controllers):
            if controller.rule == rule:
                scale = self._replica.scale
                micro = self.accumulation.seen(scale.number()) if self.accumulation else None
                samples = self._given or self._given_before or None
                found = controller.observe(cx, ExchangedBucket(unit, local, result, micro, samples))
                before = self._observed.get(index)
                self._observed[index] = added(before, found, "observe", controller).cpu()

    def ask(self, context: Callable[[int], Context]) -> None:
        """Ask for the sums of all that was seen since the last time, which the next `send` sends."""
        if self._observed:
            self.decide(context)
            self._asked = [
                (i, self._agreements.ask("control", seen)) for i, seen in sorted(self._observed.items())
            ]
            self._observed = {}

    def decide(self, context: Callable[[int], Context]) -> None:
        """Read the sums that were asked for, and let the controllers write their values.

        Args:
            context: what a controller may know, by its index.
        """
        asked, self._asked = self._asked, []
        for index, answer in asked:
            total = answer.read()
            if bool(torch.isfinite(total).all()):  # else the window is not committed, and nothing was learnt
                controller = self._controllers[index]
                decided = controller.decide(context(controller.rule), total)
                self._write(written(decided, controller))

    def close(self) -> None:
        """The step has ended."""
        self._given_before, self._given = self._given or self._given_before, 0
        self.accumulation.close()

    def given(self, samples: int) -> None:
        """The loader has given a batch."""
        self._given += samples

    def follow(self, name: str, first: float, listener: Callable[[float], None]) -> None:
        """Let a value exist, and tell a listener of it now and whenever it changes."""
        self._listeners[name] = listener
        self._write({name: self._values.get(name, first)})

    def check_loader(self) -> None:
        """Raise UsageError if the training data come from a loader that does not follow the algorithm."""
        if self._chooses_batches and not self.follows_loader:
            does = "plays clients in turn" if self._plays_clients else "chooses batch_size itself"
            raise UsageError(
                f"{self._algorithm.name} {does}, so the training data must come from "
                "engine.loader(dataset, batch_size=…)"
            )

    def export(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return dict(self._values)

    def restore(self, values: Mapping[str, float]) -> None:
        """Put saved values back."""
        self._write(values)

    def _write(self, values: Mapping[str, float]) -> None:
        self._values.update(values)
        for name in values.keys() & self._listeners.keys():
            self._listeners[name](values[name])

"""Weights that the training loop loads into an attached model between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, sub

import torch
from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.errors import CompositionWarning, UsageError, some_of
from relaxcomm.replica.named_parameters import param_groups
from relaxcomm.roles import Exchange
from relaxcomm.system.warn import warn
from relaxcomm.tensors.digest import checksum
from relaxcomm.tensors.items import Item

_version = attrgetter("_version")


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
        self._tensors = [item.tensor for item in parameters]
        self._matters = False  # loads do, to the algorithm that is followed
        self._watches = False  # for loads
        self._based: list[Rule] = []  # its rules that move parameters from where they were
        self._before: list[Tensor] | None = None  # checksums, from the first load since a step on
        self._unclear: list[bool] = []  # those that it may have put back
        self._versions: list[int] | None = None  # after that step
        self._usual = [0] * len(self._tensors)  # how often the loop itself writes in place between two steps
        self._ignores = self._is_restored = self._is_ending = self._are_final = False

    def follow(self, algorithm: Algorithm, *, is_elastic: bool = False) -> None:
        """An algorithm begins, and goes on from what was loaded.

        Where it moves parameters neither from a base nor by what is late or held elsewhere, nothing is looked
        at unless ranks change: that would take longer than all else in a step without an exchange.
        """
        self._based = [rule for rule in algorithm.rules if _has_base(rule)]
        is_late = any(rule.delay for rule in algorithm.rules) or not algorithm.is_collective
        self._matters = bool(self._based) or is_late
        self._watches = self._matters or is_elastic
        self.forget()

    def note(self) -> None:
        """A load is about to begin, into the model or a part of it.

        What was put there in place since the step, as for an evaluation, is unclear: the load may take it
        away. What the loop writes there for training, such as clipped weights, is not.
        """
        is_known = self._ignores or self._is_restored or self._before is not None
        if self._watches and not (is_known or self._is_evaluated()):
            writes = zip(self._written(), self._usual, strict=True)
            self._unclear = [times not in (0, usual) for times, usual in writes]
            self._before = self._checksums()

    def check(self, algorithm: Algorithm, step: int) -> list[str]:
        """Before the engine changes parameters: look at what was loaded since it last did.

        Args:
            algorithm: that is followed.
            step: its clock.

        Returns: names of the parameters that loads have changed.

        Raises: UsageError if there are any, where the algorithm moves them from a base.
        """
        if not self._matters:
            return []
        try:
            return self.refuse(algorithm, step)
        finally:
            if self._before is None and not self._is_restored and any(written := self._written()):
                self._usual = written
            self._before = None

    def refuse(self, algorithm: Algorithm, step: int) -> list[str]:
        """The same before a state is saved, after which what was loaded may still be put back."""
        if not self._matters:
            return []
        changed, unclear = self._loaded()
        if unclear and not changed:
            warn(
                f"load_state_dict() has changed {some_of(unclear, 1)}, which was written in place since "
                f"the last step, and {algorithm.name} cannot tell whether it was put back, as after an "
                "evaluation, or other weights were loaded, which count as what this rank has trained. "
                "Evaluate by load_state_dict() both ways; to train others close, load, and attach again",
                CompositionWarning,
            )
        if changed and any(rule.is_active(step) for rule in self._based):
            raise UsageError(
                f"load_state_dict() has changed {some_of(changed, 1)} before step {step}, and "
                f"{algorithm.name}, which moves parameters from where they were, would take it for what this "
                "rank has trained. "
                "Close the engine, load, and attach again; to go on with a saved run use "
                "engine.load_run_state_dict() or relaxcomm.checkpoint.load(), or load the engine's state; "
                "to evaluate other weights, put them in by load_state_dict(), too, and back before "
                "a step or a state"
            )
        return changed

    def changed(self) -> list[str]:
        """Names of the parameters that loads have changed since the last step."""
        return self._loaded()[0] if self._matters else []

    @property
    def was_loaded(self) -> bool:
        """Whether anything was loaded since the last step, if only what was there."""
        return self._before is not None

    def others(self) -> list[str]:
        """Names of the parameters that loads have changed, or may have, also where no step minds it."""
        changed, unclear = self._loaded()
        return changed + unclear

    @property
    def are_final(self) -> bool:
        """Whether parameters hold what the algorithm ends with: see `end_here`, or a load, see `ending`."""
        return self._is_ending and (self._are_final or bool(self.changed()))

    @property
    def ends_as_loaded(self) -> bool:
        """Whether an algorithm ends with what a load has left as it was, if loads of others change theirs."""
        return self._is_ending and self._matters and self.was_loaded and not self.others()

    def forget(self, *, is_restored: bool = False) -> None:
        """What was loaded belongs to what the engine goes on from.

        Args:
            is_restored: whether the engine's own state was loaded, to which others may follow before a step.
        """
        self._before, self._is_restored = None, is_restored
        self._versions = self._versions_now() if self._watches else None

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Notice no loads inside, whose end puts everything back."""
        before, self._ignores = self._ignores, True
        written = self._written()
        try:
            yield
        finally:
            self._ignores = before
            self._versions = list(map(sub, self._versions_now(), written))

    @contextmanager
    def ending(self) -> Iterator[None]:
        """What was loaded is what an algorithm ends with, which ends inside."""
        self._is_ending = True
        try:
            yield
        finally:
            self._is_ending = self._are_final = False

    def end_here(self) -> None:
        """The algorithm, which is ending, ends with what parameters hold now, whatever ranks are lost."""
        self._are_final = True

    @contextmanager
    def outlasting(self, *, others_end_so: bool = False) -> Iterator[None]:
        """Know the same of loads after a change of ranks, which may itself move what is trained, but nothing
        that an algorithm ends with.

        Args:
            others_end_so: whether other ranks end with what they have loaded, see `ends_as_loaded`.
        """
        as_loaded = others_end_so and self.ends_as_loaded
        others, final = self.others(), self._tensors if as_loaded or self.are_final else []
        kept = [(tensor, tensor.detach().clone()) for tensor in final]
        try:
            with self.ignored():
                yield
        finally:
            for tensor, value in kept:
                tensor.detach().copy_(value)
            if not (others or as_loaded):
                self.forget(is_restored=self._is_restored)

    def _loaded(self) -> tuple[list[str], list[str]]:
        """Names of the parameters that loads have changed since the last step, or may have put back."""
        found: tuple[list[str], list[str]] = [], []
        if self._before is not None:
            rows = zip(self._parameters, self._before, self._checksums(), self._unclear, strict=True)
            for item, old, new, unclear in rows:
                if old != new:
                    found[unclear].append(item.name)
        return found

    def _is_evaluated(self) -> bool:
        """Whether a schedule-free optimizer holds other parameters there than those that are trained."""
        return any(not group.get("train_mode", True) for group in param_groups(self._optimizers))

    def _written(self) -> list[int]:
        """How often each parameter was written in place since the step."""
        now = self._versions_now()
        return list(map(sub, now, self._versions or now))

    def _versions_now(self) -> list[int]:
        return list(map(_version, self._tensors))

    def _checksums(self) -> list[Tensor]:
        self._reshard()
        return list(torch.stack([checksum(item.tensor).cpu() for item in self._parameters]))


def _has_base(rule: Rule) -> bool:
    """Whether it moves parameters from where they were: its payload does, or its exchange, which then holds
    more of the mean than they are (push-sum)."""
    return rule.payload.facts.has_base or type(rule.exchange).rest is not Exchange.rest

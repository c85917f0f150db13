"""What a communication hook codes at once, with the state that follows its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from relaxcomm.composition.rule import Rule
from relaxcomm.engine.switching.carry_over import carried_over
from relaxcomm.errors import UsageError
from relaxcomm.integrations.hooked_model import HookedModel
from relaxcomm.network.transport import Membership
from relaxcomm.step.plan import Task
from relaxcomm.step.state import RuleState
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


@dataclass
class Unit:
    """A bucket of DDP's or all of them."""

    task: Task
    slots: RuleState


class HookUnits:
    """The units of one model; DDP makes other buckets once, and residuals move to them.

    Args:
        rule: by which gradients are averaged.
        model: whose.
        membership: of this rank.
    """

    def __init__(self, rule: Rule, model: HookedModel, membership: Membership) -> None:
        self._rule, self._model, self._membership = rule, model, membership
        self._units: dict[int, Unit] = {}
        self._before: list[Unit] = []
        self._asked: dict[int, Unit] = {}
        self._parameters: set[Tensor] = set()
        self._is_complete = False

    def of(self, index: int, parameters: Sequence[Tensor]) -> Unit:
        """The unit of these parameters, the next in a backward.

        Raises: UsageError for parameters that the first backward did not have.
        """
        known = self._units.get(index)
        if known is None or not known.task.bucket.holds(parameters):
            if known is not None:  # those asked for in this backward stay as they were
                self._before, self._units = list(self._units.values()), dict(self._asked)
            known = self._units[index] = self._make(index, parameters)
        self._asked[index] = known
        return known

    def end_backward(self) -> None:
        """All units were asked for: what lay in the buckets before has moved, and no parameter is missing."""
        self._before, self._asked, self._is_complete = [], {}, True

    def _make(self, index: int, parameters: Sequence[Tensor]) -> Unit:
        """A unit whose state comes from the buckets that its parameters lay in before."""
        if not self._is_complete:
            self._parameters.update(parameters)
        elif not self._parameters.issuperset(parameters):
            raise UsageError(
                "this hook averages the gradients of another DistributedDataParallel, whose residuals would "
                "be lost; make one with ddp_hook for each model"
            )
        items = [Item(self._model.name(p, at), p) for at, p in enumerate(parameters)]
        bucket = Bucket(index, items)
        state = RuleState(self._rule, bucket, self._membership)
        slots, before = state["compressor"], [(u.task.bucket, u.slots["compressor"]) for u in self._before]
        for name in slots:
            slots[name] = carried_over(name, slots[name], bucket, before)[0]
        state.commit(True)
        return Unit(Task(0, self._rule, bucket, "ddp"), state)

"""Which parameters are trained: those that were there at attach, or an error names the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import is_

from torch import Tensor, nn
from torch.optim import Optimizer

from relaxcomm.errors import CompositionError, UsageError
from relaxcomm.replica.named_parameters import check_stepped_once, named_parameters, param_groups, trainable
from relaxcomm.replica.sharding import is_sharded_model, item_of, reshard
from relaxcomm.replica.wrappers import check_unwrapped
from relaxcomm.tensors.items import local

_REMEDY = "close the engine, and attach the model anew"


class TrainedParameters:
    """Looks in every step whether model and optimizers hold the parameters that they held at attach.

    Args:
        model: that is attached.
        optimizers: of its parameters; none if whoever trains updates by hand.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers
        named = named_parameters(model)
        self.trained = trainable(named)
        """What is exchanged, whatever becomes of the model later."""
        self.frozen = [item_of(name, p) for name, p in named if not p.requires_grad]
        self._known = {item.parameter for item in (*self.trained, *self.frozen)}
        self._is_sharded = is_sharded_model(model)
        self._remember()

    def check(self) -> None:
        """Raise UsageError for a parameter that came later, was replaced, taken away or given twice."""
        if self._is_sharded:
            reshard(self._model)
            self._check_shards()
        if not self._is_unchanged():
            self._look()
            self._remember()

    def follow_shards(self) -> None:
        """Take shards from where they lie after a state was loaded: torch 2.8 moves those that it pads."""
        for item in self.trained:
            if (now := local(item.parameter)).data_ptr() != item.tensor.data_ptr():
                item.tensor.set_(now)  # type: ignore[call-overload]  # not among torch's stubs

    def check_frozen(self) -> None:
        """Raise UsageError if a parameter was unfrozen since attach."""
        for item in self.frozen:
            if item.parameter.requires_grad:
                raise UsageError(
                    f"{item.name} was frozen when the engine was attached and now requires a gradient, which "
                    "nothing would exchange; close the engine and attach again after unfreezing"
                )

    def _remember(self) -> None:
        """What every step compares, without a loop in Python: it has to cost microseconds."""
        modules = list(self._model.modules())
        self._tables = [one._parameters.values() for one in modules if one._parameters]  # as they become
        self._inside = tuple(chain.from_iterable(self._tables))
        self._optimized = tuple(chain.from_iterable(self._lists()))
        self._nested = [one._modules.values() for one in modules]
        self._parts = tuple(chain.from_iterable(self._nested))

    def _is_unchanged(self) -> bool:
        return (
            _hold(self._tables, self._inside)
            and _hold(self._lists(), self._optimized)
            and _hold(self._nested, self._parts)
        )

    def _check_shards(self) -> None:
        for item in self.trained:
            if local(item.parameter).data_ptr() != item.tensor.data_ptr():
                raise UsageError(
                    f"the shard of {item.name} has moved since the engine was attached (by `.to()`, or "
                    f"load_state_dict(assign=True)), so nothing would exchange it; {_REMEDY}"
                )

    def _lists(self) -> list[list[Tensor]]:
        return [group["params"] for group in param_groups(self._optimizers)]

    def _look(self) -> None:
        """Something has changed; it may be harmless, such as a new name for the same parameter."""
        named = named_parameters(self._model)
        try:
            check_unwrapped(self._model, named)
            check_stepped_once(named, self._optimizers)
        except CompositionError as error:
            raise UsageError(str(error)) from None
        present: dict[Tensor, str] = {p: name for name, p in named}
        for item in self.trained:
            if item.parameter not in present:
                raise UsageError(
                    f"{item.name} was replaced or removed since the engine was attached, and what has taken "
                    f"its place is not exchanged; {_REMEDY}"
                )
        for p in self._newly_trained(present):
            shown = present.get(p, f"a parameter of shape {list(p.shape)}, which is not in the model,")
            raise UsageError(
                f"{shown} came after the engine was attached, so nothing would exchange it; {_REMEDY}"
            )

    def _newly_trained(self, present: dict[Tensor, str]) -> list[Tensor]:
        if not self._optimizers:
            return [p for p in present if p not in self._known and p.grad is not None]
        return [p for one in self._lists() for p in one if p not in self._known]


def _hold(now: Iterable[Collection[object]], before: Sequence[object]) -> bool:
    """Whether some collections hold the same objects, one after the other, as before."""
    return sum(map(len, now)) == len(before) and all(map(is_, chain.from_iterable(now), before))

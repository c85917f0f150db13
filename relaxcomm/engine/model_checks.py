"""Whether an algorithm can work with a model and its optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import CompositionError, UsageError
from relaxcomm.replica.named_parameters import named_parameters, param_groups, trainable


def fitted(model: nn.Module, algorithm: Algorithm) -> Algorithm:
    """The algorithm for this model, in whose order fragments are cut."""
    return algorithm.over({item.name: item.tensor.numel() for item in reversed(trainable(model))})


def check_model(model: nn.Module, optimizers: Sequence[Optimizer], algorithm: Algorithm) -> None:
    """Refuse a model or an optimizer that the algorithm cannot work with."""
    items = trainable(model)
    if not items:
        raise CompositionError(
            "the model has no parameter that requires a gradient, so nothing can be exchanged"
        )
    for item in items:
        algorithm.covering(item.name)
    if not optimizers:
        needy = [
            rule
            for rule in algorithm.rules
            if rule.payload.facts.site == "step" or rule.outer.facts.needs_learning_rate
        ]
        if needy or any(rule.delay for rule in algorithm.rules):
            raise CompositionError(
                f"{algorithm!r} acts around optimizer steps, but optimizer is None; pass it, or use an "
                "algorithm of gradients without delay, such as bsp"
            )
        return
    groups = param_groups(optimizers)
    for rule in algorithm.rules:
        for made in rule.primitives.values():
            made.check_optimizer(groups)
    known = {id(p) for _, p in named_parameters(model)}
    optimized = Counter(id(p) for group in groups for p in group["params"])
    for name, p in named_parameters(model):
        if optimized[id(p)] > 1:
            raise CompositionError(
                f"{name} is stepped by {optimized[id(p)]} of the optimizers; give each parameter to one"
            )
    for index, group in enumerate(groups):
        foreign = sum(id(p) not in known for p in group["params"])
        if foreign:
            raise CompositionError(
                f"{foreign} parameter(s) in the optimizer's group {index} are not in the model, so nothing "
                "would exchange them; make them part of the model that is attached"
            )


def check_switchable(algorithm: Algorithm) -> None:
    """Refuse an algorithm that has the loader follow it, where others take turns with it."""
    if algorithm.round_plan is not None or algorithm.needs:
        raise UsageError(
            f"{algorithm.name} chooses the batches, which a loader follows from the beginning to the end of "
            "an engine; close the engine, and attach again with the other algorithm"
        )

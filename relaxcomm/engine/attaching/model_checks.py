"""Whether an algorithm can work with a model and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.errors import CompositionError, UsageError
from relaxcomm.replica.buffers import can_be_copied
from relaxcomm.replica.named_parameters import Named, check_stepped_once, named_buffers, trainable
from relaxcomm.replica.sharding import is_sharded_model
from relaxcomm.roles import VotingTrigger
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.system.torch_classes import derives_from
from relaxcomm.tensors.items import Item


def check_initialised(model: nn.Module, named: Named) -> None:
    """Refuse parameters and buffers without values or a shape yet, and parameters without plain entries."""
    for name, tensor in (*named, *named_buffers(model)):
        if is_lazy(tensor):
            raise CompositionError(
                f"{name} has no shape yet, as lazy modules get one from their first batch; call the model "
                "once with a batch, make the optimizer, and attach then"
            )
        if tensor.is_meta:
            raise CompositionError(
                f"{name} is on the meta device, which keeps no values; materialise the model with to_empty() "
                "and load its weights, make the optimizer, and attach then"
            )
    for name, p in named:
        if not can_be_copied(p):
            raise CompositionError(
                f"the parameter {name} is sparse, nested, quantised or expanded, and cannot be copied from "
                "rank to rank as plain entries; make it dense by to_dense(), dequantize() or contiguous(), "
                "or keep it by register_buffer, which stays on its rank"
            )


def check_model(
    model: nn.Module, named: Named, optimizers: Sequence[Optimizer], algorithm: Algorithm
) -> None:
    """Refuse a model or an optimizer that the algorithm cannot work with.

    Args:
        model: that is trained.
        named: its parameters.
        optimizers: of them.
        algorithm: for this model, see `fitted`.
    """
    items = trainable(named)
    if not items:
        raise CompositionError(
            "the model has no parameter that requires a gradient, so nothing can be exchanged"
        )
    for item in items:
        algorithm.covering(item.name)
        if item.tensor.is_complex():
            _check_complex(item.name, algorithm)
    if is_sharded_model(model):
        _check_shards(algorithm)
    if optimizers:
        _check_optimizers(named, optimizers, algorithm)
    elif any(
        rule.delay or rule.payload.facts.site == "step" or rule.outer.facts.needs_learning_rate
        for rule in algorithm.rules
    ):
        raise CompositionError(
            f"{algorithm!r} acts around optimizer steps, but optimizer is None; pass it, or use an "
            "algorithm of gradients without delay, such as bsp"
        )


def check_buckets(
    parameters: Sequence[Item],
    algorithm: Algorithm,
    settings: Config,
    world_size: int,
    order: Sequence[str] | None = None,
) -> None:
    """Refuse a bucket of more entries than a rule's compressor takes, also with as few ranks as may be left.

    Args:
        parameters: that are trained.
        algorithm: for this model, see `fitted`.
        settings: of the run.
        world_size: number of ranks now.
        order: names of the parameters, as they will go into buckets; by default as they were registered.

    Raises: CompositionError.
    """
    total = sum(item.parameter.numel() for item in parameters)
    if all(rule.compressor.facts.most_entries >= total for rule in algorithm.rules):
        return  # whatever lies in which bucket
    names = [item.name for item in parameters] if order is None else order
    fill_buckets(parameters, names, algorithm, settings.bucket_bytes, settings.fewest(world_size))


def _check_optimizers(named: Named, optimizers: Sequence[Optimizer], algorithm: Algorithm) -> None:
    groups = [{**group, "optimizer": type(one)} for one in optimizers for group in one.param_groups]
    for one in optimizers if algorithm.lets_replicas_differ else ():
        if derives_from(type(one), "ZeroRedundancyOptimizer"):
            raise CompositionError(
                f"{type(one).__name__} has each rank step its part of the parameters and sends them to all, "
                f"and with {algorithm.name} replicas differ, whose progress would be lost; attach with the "
                "optimizer inside it (such as torch.optim.Adam), or use an algorithm of gradients such as bsp"
            )
    for rule in algorithm.rules:
        for made in rule.primitives.values():
            made.check_optimizer(groups)
    check_stepped_once(named, optimizers)
    known = {id(p) for _, p in named}
    for index, group in enumerate(groups):
        foreign = sum(id(p) not in known for p in group["params"])
        if foreign:
            raise CompositionError(
                f"{foreign} parameter(s) in the optimizer's group {index} are not in the model, so nothing "
                "would exchange them; make them part of the model that is attached"
            )


def _check_shards(algorithm: Algorithm) -> None:
    """Refuse what means something else for the shards of a model."""
    for rule in algorithm.rules:
        if math.isfinite(rule.compressor.facts.max_norm):
            raise CompositionError(
                f"{rule.compressor!r} bounds the norm of a whole message, and of a sharded model each shard "
                "would be bounded on its own; leave it out, or clip gradients before the step"
            )


def _check_complex(name: str, algorithm: Algorithm) -> None:
    """Refuse what compares or squares entries, where they are complex."""
    for rule in algorithm.rules:
        unfit: list[object] = [one for one in (rule.compressor, rule.outer) if not one.takes_complex]
        unfit += [rule.trigger] if isinstance(rule.trigger, VotingTrigger) else []
        unfit += [rule.exchange] if rule.exchange.facts.returns == "robust mean" else []
        if unfit:
            raise CompositionError(
                f"{name} is complex, with which {unfit[0]!r} cannot work; keep it as a real parameter, with "
                "torch.view_as_complex in forward, or use an algorithm such as bsp or local_sgd"
            )


def check_switchable(algorithm: Algorithm) -> None:
    """Refuse an algorithm that has the loader follow it, where others take turns with it."""
    if algorithm.chooses_batches:
        raise UsageError(
            f"{algorithm.name} chooses the batches, which a loader follows from the beginning to the end of "
            "an engine; close the engine, and attach again with the other algorithm"
        )

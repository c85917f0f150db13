"""Who else exchanges a model's gradients or parameters: two at a time would write over each other."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from relaxcomm.errors import CompositionError, UsageError
from relaxcomm.replica.hybrid_sharding import check_hybrid
from relaxcomm.replica.named_parameters import Named
from relaxcomm.replica.shard_groups import check_sharding

_DDP = (
    "attach the model inside it (`model.module`) and train that one, or keep {name} and give it "
    "`relaxcomm.ddp_hook(compressor)`"
)
_FLATTENED = "shard it with torch.distributed.fsdp.fully_shard instead, whose shards attach exchanges"
_WRAPPERS = {
    "DistributedDataParallel": _DDP,
    "DDP": "do not call replicate() on a model that is attached",  # what replicate() makes of a class
    "ReplicateModule": "do not call replicate() on a model that is attached",
    "DataParallel": "attach the model inside it (`model.module`), with one process a GPU",
    "FullyShardedDataParallel": _FLATTENED,
}
"""PyTorch's classes that exchange by themselves, looked up by name so that none is imported for it."""


def check_unwrapped(model: nn.Module, named: Named) -> None:
    """Refuse a model that is scripted, that PyTorch exchanges already, or shards as attach cannot exchange.

    Args:
        model: to be attached, or attached.
        named: its parameters.

    Raises: CompositionError.
    """
    for place, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CompositionError(
                f"{place or 'the model'} is a {type(module).__name__}, whose parameters cannot be followed; "
                "attach the model that was scripted or traced, and script or trace it after close()"
            )
        name = _wrapper(type(module))
        if name is not None:
            raise CompositionError(f"{place or 'the model'} is under {name}, which {_why(name)}")
    for place, parameter in named:
        if _is_flattened(parameter):
            raise CompositionError(f"{place} is under FullyShardedDataParallel: {_FLATTENED}")
    check_sharding(model)
    check_hybrid(model)


def check_forward(model: nn.Module, called: nn.Module, parameter: torch.Tensor) -> None:
    """Refuse to go on where the model was wrapped after attach, or is called through an older wrapper.

    Args:
        model: that is attached.
        called: whose hook this is: a copy of it on another GPU, if a DataParallel calls.
        parameter: one of the model's.

    Raises: UsageError.
    """
    active = DistributedDataParallel._active_ddp_module
    name = _wrapper(type(model))  # the class that replicate() of torch 2.8 gives a model
    if called is not model:
        name = "DataParallel"
    elif active is not None and any(one is parameter for one in active.parameters()):
        name = "DistributedDataParallel"
    elif _is_flattened(parameter):
        name = "FullyShardedDataParallel"
    if name is not None:
        raise UsageError(f"the attached model is called by {name}, which {_why(name)}")


def check_apart(model: nn.Module, named: Named, others: Iterable[nn.Module]) -> None:
    """Refuse a model of which an open engine exchanges some parameter already.

    Args:
        model: to be attached.
        named: its parameters.
        others: that are attached.

    Raises: UsageError.
    """
    mine = {p: name for name, p in named if p.requires_grad}
    for other in others:
        if other is model:
            raise UsageError("an engine is attached to this model already; close it first")
        shared = [mine[p] for p in other.parameters() if p in mine]
        if shared:
            raise UsageError(
                f"{shared[0]} belongs to a model to which an engine is attached already; attach once, to the "
                "model that holds all that is trained, or close the other engine first"
            )


def _wrapper(cls: type) -> str | None:
    known = (one for one in cls.__mro__ if one.__name__ in _WRAPPERS)
    return next((one.__name__ for one in known if one.__module__.startswith("torch.")), None)


def _why(name: str) -> str:
    return f"exchanges by itself, so two would write to the same tensors: {_WRAPPERS[name].format(name=name)}"


def _is_flattened(parameter: torch.Tensor) -> bool:
    return bool(getattr(parameter, "_fsdp_flattened", False))

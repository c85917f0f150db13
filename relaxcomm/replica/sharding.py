"""Parameters that `fully_shard` has sharded: what this rank holds of them, and what makes them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from relaxcomm.system.torch_classes import derives_from
from relaxcomm.tensors.items import Item, local
from relaxcomm.tensors.memory_order import laid_out_like

PARAM_NAMES = "param_names"
"""Under which torch's groups keep the names of their parameters, where they were given by name."""
_MOVES_NO_SHARDS = "2.10"  # pytorch/pytorch#163130; where it is in, `.float()` may follow attach as before


def is_sharded(parameter: Tensor | None) -> bool:
    """Whether a rank holds only a part of a parameter; of none it holds none."""
    return hasattr(parameter, "device_mesh")  # without an import of DTensor, which takes half a second


def is_sharded_model(model: nn.Module) -> bool:
    """Whether a model was given to `fully_shard`, or holds DTensors."""
    # Not by model.parameters(), which takes several times as long.
    return any(
        _is_fully_sharded(module) or any(map(is_sharded, module._parameters.values()))
        for module in model.modules()
    )


def sharded_modules(model: nn.Module) -> list[Any]:
    """The parts of a model that were given to `fully_shard`."""
    return [module for module in model.modules() if _is_fully_sharded(module)]


def _is_fully_sharded(module: nn.Module) -> bool:
    return derives_from(type(module), "FSDPModule")


def reshard(model: nn.Module) -> None:
    """Have all modules hold their shards, of which whole parameters may be left from a forward."""
    for module in sharded_modules(model):
        module.reshard()


def place_shards(model: nn.Module) -> None:
    """Have shards lie where they stay: early versions of `fully_shard` move padded ones at first use."""
    padded = any(map(_is_padded, model.parameters()))  # the same on all ranks, who gather together here
    if padded and torch.__version__ < _MOVES_NO_SHARDS:
        for module in sharded_modules(model):
            module.unshard()
    reshard(model)


def _is_padded(parameter: Any) -> bool:
    """Whether a sharded parameter has a dimension that its ranks cannot share evenly."""
    return is_sharded(parameter) and any(
        placement.is_shard() and parameter.shape[placement.dim] % parameter.device_mesh.size(dimension)
        for dimension, placement in enumerate(parameter.placements)
    )


def item_of(name: str, parameter: Tensor) -> Item:
    """A parameter, or what this rank holds of it."""
    if not is_sharded(parameter):
        return Item(name, parameter)
    return Item(name, local(parameter), parameter, num_shards(parameter))


def num_shards(parameter: Any) -> int:
    """Into how many parts a sharded parameter is cut."""
    shards = 1
    for dimension, placement in enumerate(parameter.placements):
        shards *= parameter.device_mesh.size(dimension) if placement.is_shard() else 1
    return shards


def like(parameter: Tensor, values: Tensor) -> Tensor:
    """What this rank holds of a parameter's gradient or moment, as its optimizer has it."""
    if not is_sharded(parameter):
        return values
    from torch.distributed.tensor import DTensor

    made = cast("DTensor", parameter)
    sharded: Tensor = DTensor.from_local(
        values, made.device_mesh, made.placements, run_check=False, shape=made.shape, stride=made.stride()
    )
    return sharded


def moment_like(parameter: Tensor, values: Tensor) -> Tensor:
    """The same of an optimizer's state, where single numbers are not sharded."""
    return like(parameter, values) if values.shape == local(parameter).shape and values.dim() else values


def loaded(parameter: Tensor, values: Tensor) -> Tensor:
    """The same of what was saved, where the parameter may have lain in memory in another order."""
    return moment_like(parameter, laid_out_like(local(parameter), values))


def held(state: Any) -> Any:
    """A state, however nested, with what this rank holds in the place of each sharded tensor."""
    if isinstance(state, Tensor):
        return local(state)
    if isinstance(state, Mapping):
        return {key: held(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(held(value) for value in state)
    return state


def load_held(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load what `held` has made of an optimizer's `state_dict`; names that are of no parameter go through.

    Each value keeps its type. torch rounds all but `step` to the parameter's, also a product of numbers that
    NAdam keeps in float32. Names that torch keeps of parameters stay those here: the others' may be in other
    orders.
    """
    groups = [
        {
            **{key: value for key, value in theirs.items() if key != PARAM_NAMES},
            **{key: value for key, value in ours.items() if key == PARAM_NAMES},
        }
        for theirs, ours in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    by_index = dict(zip(indices, parameters, strict=True))
    state = {
        index: {
            name: loaded(by_index[index], value) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        if index in by_index
        else values
        for index, values in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state, "param_groups": groups})
    for index, parameter in by_index.items():
        kept = optimizer.state.get(parameter, {})
        for name, value in state.get(index, {}).items():
            now = kept.get(name)
            if isinstance(value, Tensor) and isinstance(now, Tensor) and now.dtype != value.dtype:
                kept[name] = value.to(now.device)

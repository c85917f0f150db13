"""Which ranks hold a replica together, and which the same shards of others: the mesh of a model tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup

from relaxcomm.errors import CompositionError
from relaxcomm.replica.sharding import is_sharded, is_sharded_model, sharded_modules

_HOW = (
    "shard it over one dimension of a mesh whose other dimension holds the replicas: mesh = "
    'init_device_mesh(device, (replicas, shards), mesh_dim_names=("replicate", "shard")), '
    'fully_shard(module, mesh=mesh["shard"])'
)


@dataclass(frozen=True)
class ShardGroups:
    """With whom a rank exchanges, and with whom it holds a replica.

    Args:
        replicas: the ranks that hold the same shards of other replicas.
        shards: the ranks that hold the other shards of this rank's replica.
    """

    replicas: ProcessGroup
    shards: ProcessGroup


def check_sharding(model: nn.Module) -> None:
    """Refuse a model that is sharded otherwise than `attach` can exchange.

    Raises: CompositionError.
    """
    if is_sharded_model(model):
        _mesh_of(model)


def check_replicas(model: nn.Module, replicas: Any) -> None:
    """Refuse a sharded model of which nobody can tell who holds another replica.

    Args:
        model: that is attached.
        replicas: the ranks that hold the same shards, where a user tells them.

    Raises: CompositionError.
    """
    if is_sharded_model(model):
        _groups(_mesh_of(model), replicas)


def find_shard_groups(model: nn.Module, replicas: Any) -> ShardGroups | None:
    """The groups of ranks that a sharded model's mesh tells; None for a whole one, or one that is refused."""
    if not is_sharded_model(model):
        return None
    try:
        return _groups(_mesh_of(model), replicas)
    except CompositionError:
        return None


def _mesh_of(model: nn.Module) -> Any:
    """The one mesh over which all parameters are sharded: of shards alone, or with replicas before them."""
    meshes = set()
    if not sharded_modules(model):
        raise CompositionError(f"the model holds DTensors that fully_shard has not made; {_HOW}")
    for name, parameter in model.named_parameters():
        if not is_sharded(parameter):
            raise CompositionError(
                f"{name} is not sharded, while others are, so that nothing would average its gradient inside "
                "a replica; give the whole model to fully_shard, without ignored_params"
            )
        found: Any = parameter  # a DTensor
        kinds = [type(placement).__name__ for placement in found.placements]
        if kinds not in (["Shard"], ["Replicate", "Shard"]):
            raise CompositionError(
                f"{name} is placed as {kinds} on a mesh of {found.device_mesh.mesh_dim_names}, and only "
                f"shards of whole replicas can be exchanged; {_HOW}"
            )
        meshes.add(found.device_mesh)
    if len(meshes) > 1:
        raise CompositionError(f"the parameters are sharded over {len(meshes)} different meshes; {_HOW}")
    return meshes.pop()


def _groups(mesh: Any, replicas: Any) -> ShardGroups:
    shards = mesh.get_group(mesh.ndim - 1)
    if mesh.ndim == 2:
        return ShardGroups(replicas or mesh.get_group(0), shards)
    return ShardGroups(replicas or _beside(mesh), shards)


def _beside(mesh: Any) -> ProcessGroup:
    """The group along the other dimension of the mesh of which one is a part.

    Raises: CompositionError where there is none: the model is sharded over all ranks, without replicas.
    """
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else _root_in_older_torch(mesh)
    names = root.mesh_dim_names or ()
    others = [name for name in names if name not in (mesh.mesh_dim_names or ()) and root[name].size() > 1]
    if len(others) != 1:
        held = f"the dimensions {names}" if others else "no dimension of replicas"
        raise CompositionError(
            f"the model is sharded over {mesh}, of a mesh with {held}; {_HOW}, or name the ranks that hold "
            "the same shards: attach(..., process_group=group)"
        )
    group: ProcessGroup = root[others[0]].get_group()
    return group


def _root_in_older_torch(mesh: Any) -> Any:
    from torch.distributed import device_mesh

    return device_mesh._mesh_resources.get_root_mesh(mesh)

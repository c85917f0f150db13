"""Files in the format of torch.distributed.checkpoint, read without running what is pickled in them."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PosixPath, WindowsPath
from typing import Any

import torch
from torch import Tensor

# torch.distributed.checkpoint is imported where it is used: that takes half a second, and few processes
# that import relaxcomm save anything.

METADATA = ".metadata"


@functools.cache
def _harmless() -> dict[tuple[str, str], Any]:
    """What a record may consist of, by the names that are pickled."""
    from torch.distributed.checkpoint import metadata, planner
    from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix
    from torch.distributed.checkpoint.storage import WriteResult

    classes: tuple[type, ...] = (
        *(metadata.Metadata, metadata.MetadataIndex),
        *(metadata.TensorStorageMetadata, metadata.StorageMeta),
        *(metadata.TensorProperties, metadata.ChunkStorageMetadata, metadata._MEM_FORMAT_ENCODING),
        *(planner.SavePlan, planner.WriteItem, planner.WriteItemType, planner.TensorWriteData, WriteResult),
        *(_StorageInfo, _StoragePrefix, torch.Size, PosixPath, WindowsPath),
    )
    found: dict[tuple[str, str], Any] = {(one.__module__, one.__qualname__): one for one in classes}
    layout = torch.serialization._get_layout
    for module in (layout.__module__, "torch.serialization"):
        found[module, "_get_layout"] = layout
    return found


class _Unpickler(pickle.Unpickler):
    """Makes the records of torch.distributed.checkpoint, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        if (module, name) not in _harmless():
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")
        return _harmless()[module, name]


def unpickle(data: bytes) -> Any:
    """A record of torch.distributed.checkpoint.

    Raises: pickle.UnpicklingError for one of anything else, before it is made.
    """
    return _Unpickler(io.BytesIO(data)).load()


class Writing:
    """This rank's part of a checkpoint, as torch.distributed.checkpoint writes it.

    Args:
        folder: in which it goes.
        entries: tensors by name, each on one rank only.
        rank: of this one.
    """

    def __init__(self, folder: Path, entries: Mapping[str, Tensor], rank: int) -> None:
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        self._planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._writer = FileSystemWriter(folder)
        self._rank = rank
        self._planner.set_up_planner(dict(entries), None, rank == 0)
        self._writer.set_up_storage_writer(rank == 0)

    def plan(self) -> bytes:
        """What this rank is going to write, for the others."""
        return pickle.dumps(self._writer.prepare_local_plan(self._planner.create_local_plan()))

    def write(self, plans: Sequence[bytes]) -> bytes:
        """Write it, given all ranks' plans; what was written, for rank 0."""
        everyone, self._metadata = self._planner.create_global_plan([unpickle(one) for one in plans])
        mine = self._planner.finish_plan(self._writer.prepare_global_plan(everyone)[self._rank])
        return pickle.dumps(self._writer.write_data(mine, self._planner).wait())

    def finish(self, results: Sequence[bytes]) -> None:
        """Write the table of contents, given what each rank has written; rank 0 does so."""
        self._writer.finish(self._metadata, [unpickle(one) for one in results])


class Reading:
    """A checkpoint's entries, each read when it is asked for.

    Args:
        folder: of the checkpoint.
        files: those that were verified; no other is read.
    """

    def __init__(self, folder: Path, files: frozenset[str]) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.metadata import Metadata

        self._reader = FileSystemReader(folder)
        metadata = unpickle((folder / METADATA).read_bytes())
        if not isinstance(metadata, Metadata):
            raise ValueError("it is not a table of contents")
        strange = {one.relative_path for one in metadata.storage_data.values()} - files
        if strange:
            raise ValueError(f"it speaks of files that were not saved: {sorted(strange)}")
        self._metadata = metadata

    def read(self, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
        """The entries with wanted names."""
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        entries: dict[str, Tensor] = {}
        for name, kind in self._metadata.state_dict_metadata.items():
            if not wanted(name):
                continue
            if not isinstance(kind, TensorStorageMetadata):
                raise ValueError(f"{name} is no tensor")  # which could only be unpickled
            entries[name] = torch.empty(kind.size, dtype=kind.properties.dtype)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(entries, self._metadata, False)
        self._reader.set_up_storage_reader(self._metadata, False)
        self._reader.read_data(planner.create_local_plan(), planner).wait()
        return entries

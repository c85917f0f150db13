"""torch's Flight Recorder, written where a rank has waited in vain and it is on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from torch._C import _distributed_c10d  # its dump has no public name

_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def dump(rank: int) -> str:
    """Write the last operations of this process for `torchfrtrace`; in which file, or nothing.

    It is on where TORCH_FR_BUFFER_SIZE is above 0, and the file is the one that torch itself would write.
    """
    sizes = [os.environ.get(name, "0") for name in _SIZES]
    record = getattr(_distributed_c10d, "_dump_fr_trace", None)
    if record is None or not any(size.isdecimal() and int(size) for size in sizes):
        return ""
    named = (os.environ[name] for name in _FILES if os.environ.get(name))
    path = Path(f"{next(named, f'{tempfile.gettempdir()}/nccl_trace_rank_')}{rank}")
    try:
        path.write_bytes(record())
    except OSError as error:
        return f"{path} could not be written: {error.strerror}"
    return str(path)

"""Where the host has waited for a GPU, as torch.profiler saw it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

MARK = "measured"
WAITS = (
    *("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy"),
    *("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH"),
)
_VERSION = re.compile(r"_(v\d+|ptsz|ptds)$")


def profiled_waits(step: Callable[[], object], steps: int) -> list[str]:
    """The host's waits in so many steps, of a loop that has been through what is done once."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen, record_function(MARK):
        for _ in range(steps):
            step()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        return waits_in(json.loads(path.read_text())["traceEvents"])


def waits_in(events: Sequence[dict[str, Any]]) -> list[str]:
    """Calls by which a thread that trains has waited while it was measured.

    A copy from the GPU is one only where it goes into memory that is not pinned. PyTorch waits for its stream
    right behind such a copy, which has done so already: both together are one. The profiler itself waits for
    the device when it ends; that lies behind the mark.

    Raises: ValueError if the trace has no mark, or no call of CUDA's at all.
    """
    timed = [one for one in events if one.get("ph") == "X"]
    mark = next((o for o in timed if o["name"] == MARK and o["cat"] == "user_annotation"), None)
    if mark is None:
        raise ValueError(f"the trace of {len(timed)} events holds no {MARK!r}")
    ours = {mark["tid"]} | {one["tid"] for one in timed if one["name"].startswith("autograd::engine::")}
    calls = [
        one
        for one in timed
        if one["cat"] in ("cuda_runtime", "cuda_driver")
        and one["tid"] in ours
        and mark["ts"] <= one["ts"] <= mark["ts"] + mark["dur"]
    ]
    if not calls:
        raise ValueError("the profiler has seen no call of CUDA's, so it cannot tell of waits")
    copies = {
        one["args"]["correlation"]: one["name"]
        for one in timed
        if one["cat"] == "gpu_memcpy" and "DtoH" in one["name"] and "Pinned" not in one["name"]
    }
    found: list[str] = []
    before: dict[Any, str | None] = {}  # of each thread: its last call, if that was such a copy
    for one in sorted(calls, key=lambda one: one["ts"]):
        name, thread = _VERSION.sub("", one["name"]), one["tid"]
        copy = copies.get(one["args"].get("correlation", 0))
        if copy is not None:
            found.append(copy)
        elif name in WAITS and not (name == "cudaStreamSynchronize" and before.get(thread)):
            found.append(name)
        before[thread] = copy
    return found

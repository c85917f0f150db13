"""How long coding takes on a device, beside what torch needs for the same: `topk` of the magnitudes, a copy.

`gaussian_k` has error feedback, `quantize` 8 bits, and decodes what 4 workers have sent.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from benchmarks.report import why
from relaxcomm.plugin import Bucket, Context, Item, Membership
from relaxcomm.primitives import error_feedback, gaussian_k, quantize, top_k
from relaxcomm.roles import Coding, Compressor
from relaxcomm.tensors.messages import Message

WORKERS = 4
Run: TypeAlias = Callable[[], object]
_SECONDS = 0.2
_PROFILED = 5  # runs


def measure(device: torch.device, numel: int, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of each contender, in turn in each round, or why it could not be measured.

    On a GPU also those of its kernels: where they are far less, it is the host that takes the time.

    Args:
        device: of the tensors.
        numel: entries of the tensor that is coded.
        rounds: repetitions.
    """
    x = torch.randn(numel, device=device, generator=torch.Generator(device).manual_seed(0))
    makers: dict[str, Callable[[], Run]] = {
        "topk": lambda: lambda: torch.topk(x.abs(), max(1, numel // 1000)),
        "gaussian_k, encode": lambda: _encoding(error_feedback(compressor=gaussian_k(density=0.001)), x),
        "top_k, encode": lambda: _encoding(top_k(density=0.001), x),
        "quantize, encode": lambda: _encoding(quantize(bits=8), x),
        "quantize, encode and decode": lambda: _decoding(quantize(bits=8), x),
        "a copy": lambda: x.clone,
    }
    contenders: dict[str, Run] = {}
    found: dict[str, list[float]] = {name: [] for name in makers}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for name, make in makers.items():
            try:
                run = contenders[name] = contenders.get(name) or make()
                timer = Timer("run()", globals={"run": run})  # which waits for the device
                found[name].append(1e3 * timer.blocked_autorange(min_run_time=_SECONDS).median)
            except Exception as error:  # whatever a compiler raises; the others can still be measured
                failed[name] = why(error)
    rows: list[dict[str, Any]] = []
    for name in makers:
        told = {"failed": failed[name]} if name in failed else _times(found[name])
        if name not in failed and device.type == "cuda":
            told |= _on_device(contenders[name], device)
        rows.append({"what": name, "numel": numel} | told)
    return rows


def _on_device(run: Run, device: torch.device) -> dict[str, Any]:
    """Milliseconds of each kernel in a run, the longest first, as torch.profiler saw them."""
    taken: Counter[str] = Counter()
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(_PROFILED):
                run()
            torch.cuda.synchronize(device)
        for event in seen.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                taken[event.name[:60]] += event.self_device_time_total
    except Exception as error:  # of the profiler; the times are known
        return {"not_profiled": why(error)}
    kernels = {name: round(total / _PROFILED / 1e3, 5) for name, total in taken.most_common()}
    return {"device_milliseconds": round(sum(kernels.values()), 5), "kernels": kernels}


def _times(milliseconds: list[float]) -> dict[str, Any]:
    return {
        "milliseconds": [round(one, 5) for one in milliseconds],
        "median_milliseconds": round(statistics.median(milliseconds), 5),
    }


def _context() -> Context:
    return Context(0, 0, Membership(0, WORKERS), lambda bucket: 0.1)


def _encoding(compressor: Compressor, x: Tensor) -> Run:
    bucket = Bucket(0, [Item("x", x)])
    state = dict(compressor.init(bucket))
    return lambda: next(compressor.encode_decode(_context(), x.clone(), dict(state), keep_sent=False))


def _decoding(compressor: Compressor, x: Tensor) -> Run:
    bucket = Bucket(0, [Item("x", x)])
    state = dict(compressor.init(bucket))

    def encoded() -> tuple[Coding, Message]:
        coding = compressor.encode_decode(_context(), x.clone(), dict(state), keep_sent=False)
        return coding, next(coding)

    _, message = encoded()
    rows = torch.stack([message.pack()] * WORKERS)  # one read four times would be in a cache
    parts = [(1 / WORKERS, message.unpack(row)) for row in rows]

    def run() -> None:
        coding, _ = encoded()
        try:
            coding.send(parts)
        except StopIteration:
            return

    return run

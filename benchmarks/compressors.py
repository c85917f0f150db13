"""How fast messages are made and added up: each against a copy of the same tensor, in turns.

    python benchmarks/compressors.py [--numel 16777216] [--rounds 15]

One thread. Reported is the ratio of the median times to that of a copy, so smaller is faster, beside the
bound that is aimed at, where there is one, and the bytes of a message.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import ratio_of_medians
from report import Report, make_parser

from relaxcomm.network.transport import Membership
from relaxcomm.plugin import Compressor, Context, Message, Quantized, Sparse
from relaxcomm.primitives import minmax_uint8, qsgd, quantize, sign, terngrad

CODERS: dict[str, Compressor] = {
    "minmax_uint8": minmax_uint8(),
    "quantize 4 bits": quantize(bits=4),
    "quantize 2 bits": quantize(bits=2),
    "quantize 8 bits, stochastic": quantize(bits=8, rounding="stochastic"),
    "qsgd": qsgd(),
    "terngrad": terngrad(),
    "sign": sign(),
}
BOUNDS = {
    "make minmax_uint8": 3.0,
    "make sign": 3.0,
    "add minmax_uint8": 3.0,
    "add sign": 3.0,
    "add sparse 1 %": 1.0,
}


def make(compressor: Compressor, tensor: torch.Tensor) -> Message:
    cx = Context(step=0, start=0, membership=Membership(0, 1), learning_rate=lambda bucket: 1.0)
    return next(compressor.encode_decode(cx, tensor, {}, keep_sent=False))


def sparse_of(tensor: torch.Tensor, density: float) -> Sparse:
    """Some entries at random places, in ascending order, as sparsifiers that scan a tensor list them."""
    places = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(1))
    chosen = places[: int(density * tensor.numel())].sort().values
    return Sparse(tensor[chosen], chosen.int(), torch.tensor([chosen.numel()], dtype=torch.int32))


def sides(tensor: torch.Tensor) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """What is timed, and the bytes of the messages."""
    into, total = torch.empty_like(tensor), torch.zeros_like(tensor)
    timed: dict[str, Callable[[], object]] = {"copy": lambda: into.copy_(tensor)}
    message_bytes = {}
    for name, compressor in CODERS.items():
        message = make(compressor, tensor)
        assert isinstance(message, Quantized)
        message_bytes[name] = message.pack().numel()
        timed[f"make {name}"] = lambda compressor=compressor: make(compressor, tensor)
        timed[f"add {name}"] = lambda message=message: message.add_to(total, 0.5)
    message = sparse_of(tensor, 0.01)
    timed["add sparse 1 %"] = lambda message=message: message.add_to(total, 0.5)
    return timed, message_bytes


def measure(numel: int, rounds: int) -> dict[str, Any]:
    """Seconds of every side in turn, a list a round."""
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    timed, message_bytes = sides(tensor)
    seconds: dict[str, list[list[float]]] = {name: [] for name in timed}
    for _ in range(rounds + 1):
        for name, side in timed.items():
            begin = time.perf_counter()
            side()
            seconds[name].append([time.perf_counter() - begin])
    kept = {name: values[1:] for name, values in seconds.items()}  # the first warms up
    return {
        "milliseconds": {
            name: 1e3 * statistics.median(one for [one] in values) for name, values in kept.items()
        },
        "over_copy": {
            name: str(ratio_of_medians(values, kept["copy"]))
            for name, values in kept.items()
            if name != "copy"
        },
        "bounds": BOUNDS,
        "message_bytes": message_bytes,
        "seconds": kept,
    }


def main() -> None:
    arguments = make_parser("compressors", __doc__, numel=1 << 24, rounds=15).parse_args()
    report = Report(arguments)
    torch.set_num_threads(1)
    found = measure(arguments.numel, arguments.rounds)
    print(f"{arguments.numel} entries, one thread; a copy takes {found['milliseconds']['copy']:.1f} ms")
    for name, ratio in found["over_copy"].items():
        aim = f"at most {BOUNDS[name]:g} wanted" if name in BOUNDS else ""
        print(f"  {name:34} {found['milliseconds'][name]:7.1f} ms, {ratio} copies  {aim}")
    report.close(found)


if __name__ == "__main__":
    main()

"""What coding asks of a GPU: launches, waits of the host and bytes an entry, on a pretended one.

    python -m benchmarks.coding_launches [--tensors 40] [--workers 4] [--width 64] [--only NAME ...]

One bucket of as many tensors, half of them matrices of `width` rows and columns, half of them vectors.
Encoding is what happens until the message is there, decoding what all workers' messages and the own residual
take. Twice: in torch's operators, of each of which a GPU makes a launch or more, and in Triton's kernels
where they exist, which the interpreter runs. A launch is counted as if it touched each of its tensors once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.report import Report, make_parser
from relaxcomm import primitives
from relaxcomm.checks.round_trip import context
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.plugin import Bucket, Compressor, Dense, Item, Message
from relaxcomm.primitives import chain, chunk_top_k, error_feedback, quantize, top_k
from relaxcomm.testing import PretendGpu
from tests.kernels import interpreter

ALONE: dict[str, Compressor] = {
    "cast": primitives.cast(dtype="float16"),
    "gaussian_k": primitives.gaussian_k(density=0.01),
    "top_k": top_k(density=0.01),
    "dgc": primitives.dgc(density=0.01),
    "adaptive_top_k": primitives.adaptive_top_k(),
    "random_k": primitives.random_k(density=0.01),
    "chunk_top_k 1 of 16": chunk_top_k(num_kept=1, chunk_size=16),
    "chunk_top_k 64 of 4096": chunk_top_k(num_kept=64),
    "dct_top_k": primitives.dct_top_k(),
    "quantize 8 bits": quantize(bits=8),
    "quantize 4 bits": quantize(bits=4),
    "quantize 8 bits, stochastic": quantize(bits=8, rounding="stochastic"),
    "qsgd": primitives.qsgd(),
    "terngrad": primitives.terngrad(),
    "sign": primitives.sign(),
    "power_sgd": primitives.power_sgd(matrix_rank=1),
    "count_sketch": primitives.count_sketch(size=1024),
    "chain(top_k, quantize)": chain(compressors=(top_k(density=0.01), quantize(bits=8))),
    "chain(chunk_top_k, quantize)": chain(
        compressors=(chunk_top_k(num_kept=1, chunk_size=16), quantize(bits=4))
    ),
}
CODERS = {
    **ALONE,
    **{
        f"error_feedback({name})": error_feedback(compressor=coder)
        for name, coder in ALONE.items()
        if name != "count_sketch"
    },
    "ef21(top_k)": primitives.ef21(compressor=top_k(density=0.01)),
    "momentum_correction(dgc)": primitives.momentum_correction(compressor=ALONE["dgc"]),
}


@dataclass(frozen=True)
class Cost:
    """What a part of coding asks of a GPU."""

    launches: int
    waits: int
    bytes_an_entry: float


def bucket_of(tensors: int, width: int) -> tuple[Bucket, Tensor]:
    """A bucket on the GPU, and what is coded."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(width, width) if index % 2 == 0 else (width,) for index in range(tensors)]
    items = [
        Item(str(index), torch.randn(shape, generator=draw).to("cuda")) for index, shape in enumerate(shapes)
    ]
    bucket = Bucket(0, items)
    return bucket, bucket.gather(bucket.empty())


def received(message: Message, workers: int, gpu: PretendGpu) -> list[tuple[float, Message]]:
    """What an exchange sends back: the mean of dense messages, or all of them, in one tensor."""
    if isinstance(message, Dense):
        return [(1.0, message)]
    rows = message.pack().repeat(workers, 1)
    gpu.work.clear()  # to take them apart is decoding
    return [(1 / workers, message.unpack(row)) for row in rows]


def cost(coder: Compressor, gpu: PretendGpu, tensors: int, workers: int, width: int) -> dict[str, Cost]:
    """Of encoding and of decoding, in the second message: numbers that stay are sent with the first."""
    found: dict[str, Cost] = {}
    bucket, x = bucket_of(tensors, width)
    state = dict(coder.init(bucket))

    def note(part: str) -> None:
        work = gpu.work
        found[part] = Cost(work.launches, len(work.waits), round(work.num_bytes / x.numel(), 1))
        work.clear()

    for step in range(2):
        mine, cx = x.clone(), context(step=step, layout=bucket.layout)
        gpu.work.clear()
        coding = coder.encode_decode(cx, mine, state, keep_sent=False)
        message = next(coding)
        note("encode")
        try:
            while True:
                message = coding.send(received(message, workers, gpu))
        except StopIteration:
            note("decode")
    return found


def measure(names: list[str], gpu: PretendGpu, arguments: Any) -> dict[str, Any]:
    """Costs of each coder in both implementations."""
    found: dict[str, Any] = {}
    interpreter.mend()
    of = arguments.tensors, arguments.workers, arguments.width
    for name in names:
        found[name] = {}
        for kind in ("torch", "triton"):
            with implementation(kind), np.errstate(all="ignore"):
                found[name][kind] = cost(CODERS[name], gpu, *of)
        print(f"  {name:45}" + "".join(_row(found[name][kind]) for kind in ("torch", "triton")), flush=True)
    return found


def _row(costs: dict[str, Cost]) -> str:
    parts = costs["encode"], costs["decode"]
    launches = "+".join(str(one.launches) for one in parts)
    waits, touched = sum(one.waits for one in parts), sum(one.bytes_an_entry for one in parts)
    return f"{launches:>12} {waits:5} {touched:8.1f} |"


def main() -> None:
    parser = make_parser("coding-launches", __doc__, tensors=40, workers=4, width=64)
    parser.add_argument("--only", nargs="+", choices=list(CODERS), default=list(CODERS), metavar="NAME")
    arguments = parser.parse_args()
    if interpreter.REASON is not None:
        parser.error(interpreter.REASON)
    report = Report(arguments)
    heading = f"{'launches':>12} {'waits':>5} {'B/entry':>8} |"
    print(f"  {'torch, then triton: encode+decode':45}{heading}{heading}")
    with PretendGpu() as gpu:  # one for all: what is kept on it from one message to the next stays there
        found = measure(arguments.only, gpu, arguments)
    report.close(found)


if __name__ == "__main__":
    main()

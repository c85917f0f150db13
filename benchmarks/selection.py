"""How fast sparsifiers choose, error feedback included: each against an exact top-k, in turns.

    python benchmarks/selection.py [--numel 16777216] [--rounds 9]

One thread. Reported is the ratio of the median times, exact top-k over the other, so larger is faster; and
the ratio to a copy of the same tensor.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import torch
from measure import ratio_of_medians
from report import Report, make_parser

from relaxcomm.network.transport import Membership
from relaxcomm.plugin import Bucket, Compressor, Context, Sparse
from relaxcomm.primitives import dgc, error_feedback, gaussian_k, random_k, top_k
from relaxcomm.tensors.items import Item

DENSITIES = (0.01, 0.001)
KINDS = (top_k, gaussian_k, dgc, random_k)


class Side:
    """One compressor with its residual, fed the same gradient again and again."""

    def __init__(self, compressor: Compressor, gradient: torch.Tensor) -> None:
        self.compressor = error_feedback(compressor=compressor)
        self.state = dict(self.compressor.init(Bucket(0, [Item("gradient", gradient)])))
        self.gradient, self.step = gradient, 0

    def select(self) -> float:
        """Seconds from the gradient to the message and the new residual; decoding is left out."""
        cx = Context(step=self.step, start=0, membership=Membership(0, 1), learning_rate=lambda bucket: 1.0)
        coding = self.compressor.encode_decode(cx, self.gradient, self.state, keep_sent=True)
        begin = time.perf_counter()
        message = next(coding)
        chosen = time.perf_counter() - begin
        nothing = type(message)(*(part.clone() for part in vars(message).values()))
        if isinstance(nothing, Sparse):
            nothing.count.zero_()
        # What comes back holds nothing, so that only the residual's update is added to the time.
        begin = time.perf_counter()
        with contextlib.suppress(StopIteration):
            coding.send([(1.0, nothing)])
        decoded = time.perf_counter()
        torch.zeros_like(self.gradient)
        zeros = time.perf_counter() - decoded
        self.step += 1
        return chosen + max(0.0, decoded - begin - zeros)


def copy_seconds(gradient: torch.Tensor, into: torch.Tensor) -> float:
    begin = time.perf_counter()
    into.copy_(gradient)
    return time.perf_counter() - begin


def measure(numel: int, rounds: int, density: float) -> dict[str, Any]:
    """Seconds of every side in turn, a list a round."""
    draw = torch.Generator().manual_seed(0)
    gradient = torch.empty(numel)
    into = torch.empty_like(gradient)
    sides = {kind.__name__: Side(kind(density=density), gradient) for kind in KINDS}
    seconds: dict[str, list[list[float]]] = {name: [] for name in (*sides, "copy")}
    for _ in range(rounds + 1):
        gradient.normal_(generator=draw)  # a new one each round; the residuals go on
        for name, side in sides.items():
            seconds[name].append([side.select()])
        seconds["copy"].append([copy_seconds(gradient, into) for _ in range(3)])
    kept = {name: values[1:] for name, values in seconds.items()}  # the first warms up
    others = [name for name in sides if name != "top_k"]
    return {
        "density": density,
        "milliseconds": {
            name: 1e3 * statistics.median(one for values in rounds_of for one in values)
            for name, rounds_of in kept.items()
        },
        "top_k_over": {name: str(ratio_of_medians(kept["top_k"], kept[name])) for name in others},
        "over_copy": {name: str(ratio_of_medians(kept[name], kept["copy"])) for name in sides},
        "seconds": kept,
    }


def main() -> None:
    arguments = make_parser("selection", __doc__, numel=1 << 24, rounds=9).parse_args()
    report = Report(arguments)
    torch.set_num_threads(1)
    found = [measure(arguments.numel, arguments.rounds, density) for density in DENSITIES]
    for one in found:
        print(f"density {one['density']}, {arguments.numel} entries, one thread")
        for name, ratio in one["top_k_over"].items():
            ms = one["milliseconds"]
            print(
                f"  {name:12} {ms[name]:7.1f} ms   top_k ({ms['top_k']:.0f} ms) takes {ratio} times as long"
            )
    report.close(found)


if __name__ == "__main__":
    main()

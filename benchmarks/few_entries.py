"""What an exchange of few entries or bits costs a worker's processor, part by part, in copies of the tensor.

    python -m benchmarks.few_entries [--numel 10485760] [--workers 4] [--rounds 9]

Workers train in one process, one at a time, on one thread each: the engine, the algorithms and the messages
are the real ones, and the network costs nothing but copies of messages. Each backward and step with relaxcomm
is followed by one without, whose processor time is taken off, and by a copy of a tensor of as many entries;
what is reported is a ratio to it. A part is what its functions take without other parts inside them.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.given_gradients import loss_of
from benchmarks.lab.entries import EIGHT_BITS, FEW
from benchmarks.measure import ratio_of_medians
from benchmarks.report import Report, make_parser
from relaxcomm import attach, simulate
from relaxcomm.network import InProcessGroup
from relaxcomm.primitives import deltas
from relaxcomm.primitives.compressors import (
    chunk_top_k,
    decode,
    error_feedback,
    gaussian_k,
    sparsifier,
    top_k,
    uniform_quantizer,
)
from relaxcomm.primitives.compressors.quantize import quantize
from relaxcomm.primitives.compressors.threshold_search import Magnitudes
from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.step import gradient_transfers, parameter_results
from relaxcomm.step.flight import Flight
from relaxcomm.step.transfer import Transfer
from relaxcomm.tensors.messages import Message

TWO_BITS = {"error_feedback": {"quantize": {"bits": 2}}}
SIDES: dict[str, dict[str, Any]] = {
    "gaussiank_sgd 0.1 %": {"name": "gaussiank_sgd", "density": 0.001},
    "gaussiank_sgd 1 %": {"name": "gaussiank_sgd", "density": 0.01},
    "topk_sgd 0.1 %": {"name": "topk_sgd", "density": 0.001},
    "topk_sgd 1 %": {"name": "topk_sgd", "density": 0.01},
    "local_sgd 1 of 16": {"name": "local_sgd", "steps": 1, "compressor": FEW},
    "local_sgd 1 of 16, late": {"name": "local_sgd", "steps": 1, "compressor": FEW, "delay": 1},
    "local_sgd 8 bits": {"name": "local_sgd", "steps": 1, "compressor": EIGHT_BITS},
    "local_sgd 8 bits, late": {"name": "local_sgd", "steps": 1, "compressor": EIGHT_BITS, "delay": 1},
    "local_sgd 2 bits": {"name": "local_sgd", "steps": 1, "compressor": TWO_BITS},
}
PARTS: dict[str, tuple[tuple[object, str], ...]] = {
    "collect gradients": ((GradientBuffer, "take"), (GradientBuffer, "collect")),
    "read deltas": ((deltas, "read"),),
    "look for NaN": (
        (gradient_transfers, "spoilt"),
        (gradient_transfers, "is_finite"),
        (parameter_results, "is_finite"),
    ),
    "threshold": ((Magnitudes, "threshold_for"),),
    "make u and select": (
        (gaussian_k.gaussian_k, "select"),
        (top_k.top_k, "select"),
        (chunk_top_k, "largest"),
    ),
    "quantize": (
        (uniform_quantizer.UniformQuantizer, "_message"),
        (uniform_quantizer.UniformQuantizer, "message_with_feedback"),
        (quantize, "_in_kernels"),
    ),
    "encode": ((sparsifier, "pack_selected"), (Message, "pack"), (Message, "unpack")),
    "decode and add up": (
        (sparsifier, "sum_sparse"),
        (chunk_top_k, "sum_sparse"),
        (decode, "sum_sparse"),
        (uniform_quantizer.UniformQuantizer, "decoded"),
    ),
    "residual": ((error_feedback, "subtract"), (torch.Tensor, "index_fill_")),
    "write back": ((Transfer, "finalize"), (Transfer, "apply")),
}
CODING = "the rest of the coding"
OTHERS = "the rest of the engine"
WHOLE, COPY = "the whole", "copy"
TENSORS = 10
WARM_UP = 3  # steps


class Stopwatch:
    """Processor seconds of the parts of this thread's work, each without the parts inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside: list[float] = [0.0]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._inside.append(0.0)
        begin = time.thread_time()
        try:
            yield
        finally:
            took = time.thread_time() - begin
            self.seconds[name] += took - self._inside.pop()
            self._inside[-1] += took

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*args, **options)

        return run


STOPWATCH = Stopwatch()  # ranks are threads of which one runs at a time


def watching() -> ExitStack:
    """Inside, the functions of all parts are timed."""
    stack = ExitStack()
    for name, functions in (*PARTS.items(), (CODING, ((Flight, "_resume"),))):
        for owner, attribute in functions:
            timed = STOPWATCH.watched(name, getattr(owner, attribute))
            stack.enter_context(mock.patch.object(owner, attribute, timed))
    return stack


class Model(nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        shape = -(-numel // TENSORS)
        self.tensors = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for _ in range(TENSORS)])

    def forward(self, gradients: list[Tensor]) -> Tensor:
        return loss_of(gradients, *self.tensors)


class Trained:
    """A model with an optimizer."""

    def __init__(self, numel: int) -> None:
        self.model = Model(numel)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, gradients: list[Tensor]) -> float:
        """Processor seconds of one."""
        begin = time.thread_time()
        self.model(gradients).backward()
        self.optimizer.step()
        took = time.thread_time() - begin
        self.optimizer.zero_grad()
        return took


def measure(numel: int, workers: int, rounds: int, algorithm: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Seconds of an exchange, of its parts and of copies; a list a round, with all workers' in it."""

    def train(group: InProcessGroup) -> list[dict[str, float]]:
        draw = torch.Generator().manual_seed(group.rank())
        subject, alone = Trained(numel), Trained(numel)
        found = []
        with attach(subject.model, subject.optimizer, {"algorithm": algorithm}, process_group=group):
            for _ in range(WARM_UP + rounds):
                gradients = [torch.randn(one.shape, generator=draw) for one in subject.model.parameters()]
                STOPWATCH.seconds.clear()
                whole = subject.step(gradients)
                parts = dict(STOPWATCH.seconds)
                exchange = whole - alone.step(gradients)
                into, flat = torch.zeros(numel), torch.ones(numel)
                begin = time.thread_time()
                into.copy_(flat)
                copy = time.thread_time() - begin
                others = exchange - sum(parts.values())
                found.append({WHOLE: exchange, **parts, OTHERS: others, COPY: copy})
        return found[WARM_UP:]

    with watching():
        by_worker = simulate(train, workers)
    names = by_worker[0][0]
    return {
        name: [[one[name] for one in together] for together in zip(*by_worker, strict=True)] for name in names
    }


def main() -> None:
    counts = {"numel": 10 << 20, "workers": 4, "rounds": 9}
    arguments = make_parser("few-entries", __doc__, **counts).parse_args()
    report, found = Report(arguments), {}
    torch.set_num_threads(1)
    for side, algorithm in SIDES.items():
        seconds = measure(arguments.numel, arguments.workers, arguments.rounds, algorithm)
        ratios = {name: str(ratio_of_medians(one, seconds[COPY])) for name, one in seconds.items()}
        milliseconds = {
            name: 1e3 * statistics.median(one for together in rounds for one in together)
            for name, rounds in seconds.items()
        }
        found[side] = {"over_copy": ratios, "milliseconds": milliseconds, "seconds": seconds}
        print(f"{side}: {arguments.workers} workers, {arguments.numel} entries")
        for name, ratio in ratios.items():
            print(f"  {name:44} {milliseconds[name]:6.1f} ms  {ratio} copies")
    report.close(found)


if __name__ == "__main__":
    main()

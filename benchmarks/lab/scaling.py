"""Cost as the work grows, against the alpha-beta model: `python -m benchmarks.lab.scaling`, as root.

One exchange of all parameters, with no computing beside it, for several numbers of workers and parameters.
Contenders take turns; the first two exchanges of each, in which buffers and groups are made, are not kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.lab import scaling_report
from benchmarks.lab.crew import Crew, crew
from benchmarks.lab.network import end_in_order
from benchmarks.lab.networks import missing
from benchmarks.lab.recording import begin
from benchmarks.lab.scaling_model import REFERENCE
from benchmarks.report import dated, positive, result_file

RATES = {"1gbit": "1gbit", "unshaped": None}
CONTENDERS = (
    REFERENCE,
    "ddp",
    "relaxcomm bsp",
    "relaxcomm local_sgd, 8 bits",
    "relaxcomm local_sgd, sparse",
)
_FIRST = 2  # exchanges that are not kept; in the second DDP makes its buckets anew, and memory settles
Log = Callable[[dict[str, Any]], None]


def measure(
    hosts: Crew, contenders: Sequence[str], numels: Sequence[int], rates: Sequence[str], rounds: int, log: Log
) -> None:
    """Every contender at every size and rate, once a round, beginning at another contender each time."""
    for index in range(rounds):
        _exchange(hosts, REFERENCE, 1, rates, log)  # the tiny message
        for numel in numels:
            first = index % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                _exchange(hosts, contender, numel, rates, log)


def _exchange(hosts: Crew, contender: str, numel: int, rates: Sequence[str], log: Log) -> None:
    asked = {"contender": contender, "numel": numel}
    for _ in range(_FIRST):
        hosts.ask(asked, None)
    for name in rates:
        answers = hosts.ask(asked, RATES[name])
        log(
            {
                "label": contender,
                "numel": numel,
                "rate": name,
                "workers": len(answers),
                "seconds": max(answer["seconds"] for answer in answers),
                "bytes_sent": sum(answer["bytes_sent"] for answer in answers) / len(answers),
                "cpu_seconds": sum(answer["cpu_seconds"] for answer in answers) / len(answers),
                "declared_bytes": answers[0]["declared_bytes"],
                "operations": answers[0]["operations"],
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", nargs="+", type=positive(int), default=[2, 4, 8])
    parser.add_argument("--sizes", nargs="+", type=positive(float), default=[1, 10, 50], help="million")
    parser.add_argument("--rates", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=positive(int), default=5)
    parser.add_argument("--output", type=result_file, help="a .jsonl file; its table and plot lie beside it")
    arguments = parser.parse_args()
    if REFERENCE not in arguments.contenders:
        parser.error(f"--contenders: {REFERENCE} must be among them, since the prediction is fitted to it")
    if reason := missing("namespaces"):
        sys.exit(
            f"{reason}; cost as the work grows is measured between hosts of their own only, nothing was run"
        )
    end_in_order()
    output = arguments.output or dated("lab-scaling", "jsonl")
    log = begin(output, arguments)
    numels = [round(1e6 * size) for size in arguments.sizes]
    for workers in arguments.workers:
        with crew(workers, module="benchmarks.lab.scaling_worker") as hosts:
            measure(
                hosts,
                arguments.contenders,
                numels,
                arguments.rates,
                arguments.rounds,
                lambda record: log("exchange", record),
            )
    scaling_report.write(output)


if __name__ == "__main__":
    main()

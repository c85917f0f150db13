"""The standard set, one command: `python -m benchmarks.lab`, as root, or else throttled."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.lab import counted, report, resuming, standard
from benchmarks.lab.crew import crew
from benchmarks.lab.entries import ENTRIES, SETS
from benchmarks.lab.links import left_out
from benchmarks.lab.network import end_in_order
from benchmarks.lab.networks import NETWORKS, usable
from benchmarks.lab.recording import begin
from benchmarks.lab.rivals import CANNOT
from benchmarks.lab.tuning import Grid
from benchmarks.lab.workloads import WORKLOADS
from benchmarks.report import dated, result_file

_RATES = {"100mbit": "100mbit", "1gbit": "1gbit", "unshaped": None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--workers", nargs="+", type=int, default=[4])
    parser.add_argument("--rates", nargs="+", choices=list(_RATES), default=list(_RATES))
    parser.add_argument(
        "--entries",
        nargs="+",
        choices=[*SETS, *ENTRIES],
        default=["standard"],
        help="contenders, or sets of them",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--learning-rates", nargs="+", type=float, help="to try, instead of the workload's")
    parser.add_argument("--periods", nargs="+", type=int, help="to try, of those that a contender has")
    parser.add_argument(
        "--steps", type=int, help="of a trial at most, instead of the workload's: fewer workers need more"
    )
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument(
        "--counted",
        nargs="+",
        type=Path,
        default=[],
        help="earlier results, whose tuning trials need not be run again",
    )
    parser.add_argument(
        "--output",
        type=result_file,
        default=None,
        help="a .jsonl file, beside which its plots lie; if it is there, the run goes on where it was ended",
    )
    parser.add_argument(
        "--network", choices=list(NETWORKS), default="namespaces", help="how links are slowed"
    )
    return parser


def _grid(arguments: argparse.Namespace, output: Path) -> Grid:
    return Grid(
        arguments.learning_rates and tuple(arguments.learning_rates),
        arguments.periods and tuple(arguments.periods),
        tuple(range(100, 100 + arguments.tuning_seeds)),
        arguments.steps,
        counted.read([*arguments.counted, *([output] if output.exists() else [])]),
    )


def _run(arguments: argparse.Namespace, output: Path) -> None:
    """Write what was asked for and where, then run it all."""
    network = usable(arguments.network)
    absent = left_out(network, {label: ENTRIES[label].contender for label in arguments.entries})
    entries = [label for label in arguments.entries if label not in absent]
    if not entries:
        sys.exit(f"nobody is left to train with --network {network}: {absent}")
    grid, earlier = _grid(arguments, output), resuming.read(output)
    try:
        resuming.check_same(earlier, vars(arguments))
    except ValueError as error:
        sys.exit(f"{output}: {error}")
    log = begin(output, arguments, network=NETWORKS[network].mark, cannot={**CANNOT, **absent})
    for workload in arguments.workloads:
        for workers in arguments.workers:
            with crew(workers, network=network) as hosts:
                standard.run(
                    hosts,
                    workload,
                    entries,
                    [_RATES[name] for name in arguments.rates],
                    range(arguments.seeds),
                    grid,
                    lambda kind, record, workers=workers: log(kind, {"workers": workers, **record}),
                    resuming.Before(earlier, workload, workers, hosts.network),
                )


def main() -> None:
    arguments = _parser().parse_args()
    named = [label for one in arguments.entries for label in SETS.get(one, (one,))]
    arguments.entries = list(dict.fromkeys(named))
    end_in_order()
    output = arguments.output or dated("lab", "jsonl")
    _run(arguments, output)
    report.write(output)


if __name__ == "__main__":
    main()

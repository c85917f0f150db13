"""relaxcomm's `bsp` against DistributedDataParallel: step time and peak memory.

    python -m benchmarks.ddp_overhead --workers 2 4 --models mlp transformer tiny

README.md in this folder says what is measured, how, and why so.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.measure import Ratio, ratio_of_medians, run_ranks
from benchmarks.overhead_profile import print_profile, profile_rank
from benchmarks.overhead_ranks import MODELS, SIDES, Plan, memory_rank, time_rank
from benchmarks.report import Report, make_parser, positive

MIB = 2**20
TOO_WIDE = 0.15  # a noise floor wider than this would call anything equal


def measure_time(model_name: str, workers: int, plan: Plan, launches: int) -> dict[str, Any]:
    """Step times of all sides over `launches` sets of processes, and their ratios to DDP."""
    runs = [run_ranks(time_rank, workers, model_name, plan, launch) for launch in range(launches)]

    def ratio(side: str, kind: str = "seconds", chosen: Sequence[dict[str, Any]] = runs) -> Ratio:
        blocks = {name: [block for run in chosen for block in run[kind][name]] for name in SIDES}
        return ratio_of_medians(blocks[side], blocks["ddp"])

    return {
        "median_seconds": {
            side: statistics.median(step for run in runs for block in run["seconds"][side] for step in block)
            for side in SIDES
        },
        **{
            side: {
                "wall": ratio(side),
                "cpu": ratio(side, "cpu_seconds"),
                "wall_by_launch": [ratio(side, chosen=[run]).value for run in runs],
            }
            for side in SIDES[1:]
        },
        "runs": runs,
    }


def measure_memory(model_name: str, workers: int, plan: Plan, launches: int) -> dict[str, Any]:
    """Peak memory of each side alone, in processes of its own; the ratio is of means over ranks."""
    launched: dict[str, list[dict[str, int]]] = {"ddp": [], "relaxcomm": []}
    for _ in range(launches):
        for side, ranks in launched.items():
            ranks += run_ranks(memory_rank, workers, model_name, side, plan)

    def ratio(kind: str) -> float:
        mean = {
            side: statistics.mean(float(rank[kind]) for rank in ranks) for side, ranks in launched.items()
        }
        return mean["relaxcomm"] / mean["ddp"]

    return {
        "above_baseline": ratio("above_baseline_bytes"),
        "whole_process": ratio("process_bytes"),
        "ranks": launched,
    }


def describe(record: dict[str, Any]) -> str:
    """The rows of one model and number of workers."""
    spent, memory = record["time"], record["memory"]
    medians, ours, floor = spent["median_seconds"], spent["relaxcomm"], spent["ddp_again"]
    mebibytes = {
        side: [rank["above_baseline_bytes"] / MIB for rank in ranks]
        for side, ranks in memory["ranks"].items()
    }
    spread = {side: f"{min(values):.1f} to {max(values):.1f} MiB" for side, values in mebibytes.items()}
    return "\n".join(
        [
            f"{record['model']}, {record['workers']} workers",
            f"  median step        DDP {medians['ddp'] * 1e3:.2f} ms, "
            f"relaxcomm {medians['relaxcomm'] * 1e3:.2f} ms",
            f"  relaxcomm / DDP    {ours['wall']}, by launch {_list(ours['wall_by_launch'])}",
            f"  DDP / DDP          {floor['wall']}, by launch {_list(floor['wall_by_launch'])}",
            f"  verdict            {verdict(ours['wall'], floor['wall'])}",
            f"  CPU time           relaxcomm / DDP {ours['cpu']}, DDP / DDP {floor['cpu']}",
            f"  peak memory        {memory['above_baseline']:.3f} above the baseline (DDP {spread['ddp']}, "
            f"relaxcomm {spread['relaxcomm']}); whole process {memory['whole_process']:.3f}",
        ]
    )


def verdict(ours: Ratio, floor: Ratio) -> str:
    """What the two intervals allow to say."""
    if floor.high - floor.low > TOO_WIDE:
        return "none: DDP differs too much from itself; measure on a quieter machine or with more rounds"
    return f"{'within' if ours.value <= floor.high else 'slower than'} DDP's spread against itself"


def _list(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def whole_run(arguments: argparse.Namespace, plan: Plan) -> None:
    """Measure every combination that was asked for, print each as it is done, and keep all of it."""
    report, measured = Report(arguments), []
    found = {"plan": asdict(plan), "measured": measured}
    for workers in arguments.workers:
        for model_name in arguments.models:
            record = {
                "model": model_name,
                "workers": workers,
                "time": measure_time(model_name, workers, plan, arguments.launches),
                "memory": measure_memory(model_name, workers, plan, arguments.launches),
            }
            measured.append(record)
            report.write(found)  # after each: an interrupted run keeps what it has
            print(describe(record), flush=True)
    report.close(found)


def main() -> None:
    whole = positive(int)
    # In 3 launches each side is built first, which costs it up to 3 %; 6 rounds cover all orders.
    parser = make_parser("ddp-overhead", __doc__, rounds=12, launches=3)
    parser.add_argument("--workers", type=whole, nargs="+", default=[2, 4], help="numbers of workers")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--block-seconds", type=positive(float), default=0.3, help="about how long a side's turn lasts"
    )
    parser.add_argument("--profile", action="store_true", help="only show where relaxcomm's time goes")
    arguments = parser.parse_args()
    plan = Plan(rounds=arguments.rounds, block_seconds=arguments.block_seconds)
    if not arguments.profile:
        whole_run(arguments, plan)
        return
    for workers in arguments.workers:
        for model_name in arguments.models:
            print(f"{model_name}, {workers} workers, rank 0")
            print_profile(run_ranks(profile_rank, workers, model_name, plan), plan.profile_steps)


if __name__ == "__main__":
    main()

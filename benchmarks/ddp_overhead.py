"""relaxcomm's `bsp` against DistributedDataParallel: step time and peak memory.

    python benchmarks/ddp_overhead.py --workers 2 4 --models mlp transformer tiny

README.md in this folder says what is measured, how, and why so.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import dated, environment, ratio_of_medians, run_ranks, write_result
from overhead_profile import print_profile, profile_rank
from overhead_ranks import MODELS, SIDES, Plan, memory_rank, time_rank

MIB = 2**20


def measure_time(model_name: str, workers: int, plan: Plan, launches: int) -> dict[str, Any]:
    """Step times of all sides over `launches` sets of processes, and their ratios to DDP."""
    runs = [run_ranks(time_rank, workers, model_name, plan, launch) for launch in range(launches)]
    rounds = {side: [block for run in runs for block in run["seconds"][side]] for side in SIDES}

    def per_launch(side: str) -> list[float]:
        return [ratio_of_medians(run["seconds"][side], run["seconds"]["ddp"]).value for run in runs]

    return {
        "median_seconds": {
            side: statistics.median([step for block in blocks for step in block])
            for side, blocks in rounds.items()
        },
        "relaxcomm_to_ddp": ratio_of_medians(rounds["relaxcomm"], rounds["ddp"]),
        "ddp_to_itself": ratio_of_medians(rounds["ddp_again"], rounds["ddp"]),
        "relaxcomm_to_ddp_by_launch": per_launch("relaxcomm"),
        "ddp_to_itself_by_launch": per_launch("ddp_again"),
        "runs": runs,
    }


def measure_memory(model_name: str, workers: int, plan: Plan) -> dict[str, Any]:
    """Peak memory of each side alone, a process set for each; the ratio is of means over ranks."""
    ranks = {side: run_ranks(memory_rank, workers, model_name, side, plan) for side in ("ddp", "relaxcomm")}

    def ratio(kind: str) -> float:
        mean = {side: statistics.mean(float(rank[kind]) for rank in ranks[side]) for side in ranks}
        return mean["relaxcomm"] / mean["ddp"]

    return {
        "relaxcomm_to_ddp": ratio("above_baseline_bytes"),
        "relaxcomm_to_ddp_whole_process": ratio("process_bytes"),
        "ranks": ranks,
    }


def describe(record: dict[str, Any]) -> str:
    """The rows of one model and number of workers."""
    spent, memory = record["time"], record["memory"]
    medians, ours, floor = spent["median_seconds"], spent["relaxcomm_to_ddp"], spent["ddp_to_itself"]
    mebibytes = {
        side: statistics.mean(rank["above_baseline_bytes"] for rank in ranks) / MIB
        for side, ranks in memory["ranks"].items()
    }
    verdict = "within DDP's own spread" if ours.value <= floor.high else "slower than DDP's own spread"
    return "\n".join(
        [
            f"{record['model']}, {record['workers']} workers",
            f"  step, median        DDP {medians['ddp'] * 1e3:.2f} ms, relaxcomm "
            f"{medians['relaxcomm'] * 1e3:.2f} ms",
            f"  relaxcomm / DDP     {ours}  by launch {_list(spent['relaxcomm_to_ddp_by_launch'])}",
            f"  DDP / DDP           {floor}  by launch {_list(spent['ddp_to_itself_by_launch'])}",
            f"  verdict             {verdict}",
            f"  peak memory         {memory['relaxcomm_to_ddp']:.3f} above the baseline (DDP "
            f"{mebibytes['ddp']:.1f} MiB, relaxcomm {mebibytes['relaxcomm']:.1f} MiB); "
            f"{memory['relaxcomm_to_ddp_whole_process']:.3f} of the whole process",
        ]
    )


def _list(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def whole_run(arguments: argparse.Namespace, plan: Plan) -> None:
    """Measure every combination that was asked for, print each as it is done, and keep all of it."""
    result = {**environment(), "plan": asdict(plan), "launches": arguments.launches, "measured": []}
    for workers in arguments.workers:
        for model_name in arguments.models:
            record = {
                "model": model_name,
                "workers": workers,
                "time": measure_time(model_name, workers, plan, arguments.launches),
                "memory": measure_memory(model_name, workers, plan),
            }
            result["measured"].append(record)
            write_result(arguments.output, result)  # after each: an interrupted run keeps what it has
            print(describe(record), flush=True)
    print(f"all repetitions: {arguments.output}")


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """An argparse type: a number above 0."""

    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"got {text}; it must be a number above 0")
        return value

    parse.__name__ = kind.__name__  # argparse shows it when the text is no number at all
    return parse


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whole, real = positive(int), positive(float)
    parser.add_argument("--workers", type=whole, nargs="+", default=[2, 4], help="numbers of workers")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=whole, default=12, help="rounds a launch; 6 cover all orders")
    parser.add_argument("--launches", type=whole, default=2, help="sets of fresh processes (default 2)")
    parser.add_argument("--block-seconds", type=real, default=0.3, help="about how long a side's turn lasts")
    parser.add_argument("--output", type=Path, default=dated("ddp-overhead"), help="the result file")
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

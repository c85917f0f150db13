"""What a machine with one GPU proves, in one command of at most 8 minutes, and how long coding takes there.

    make test-gpu
    python3 -m benchmarks.gpu.bare build/gpu-bundle benchmarks.gpu     # on a machine without a network

Files of tests run side by side: those that tell most begin first, beside kernels. A test that hangs is ended,
a file of which two in a row hang is left, and the result is written after each test. Exit code 0 if all that
was tried holds, 1 if something does not, 2 without a GPU.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import Any

import torch

from benchmarks.gpu.aims import aims
from benchmarks.gpu.proofs import prove
from benchmarks.gpu.speed import measure
from benchmarks.report import Report, make_parser, why

TESTS = (
    "tests/gpu/test_nccl.py",
    "tests/gpu/test_host_waits.py",
    "tests/gpu/test_nccl_failures.py",
    "tests/gpu/test_precision.py",
    "tests/gpu/test_ways_to_train.py",
    "tests/gpu/test_gpu_checkpoints.py",
    "tests/gpu/test_golden_trajectories.py",
    "tests/kernels",
)
"""In the order of what they tell; one lane begins at the end, with what needs no NCCL."""
SIZES = (1 << 20, 16 << 20, 1 << 30, (16 << 20) + 1)
"""Those with aims first. One is no multiple of 16: a GPU reads its entries one by one."""
_SPEED_SECONDS = 90  # for what comes behind the proofs
_SIZE_SECONDS = 20
_MOST_AT_ONCE, _CORES_EACH = 5, 3  # three ranks of a test; the GPU takes turns


def main() -> int:
    parser = make_parser("gpu", __doc__, limit_seconds=470, test_seconds=100, rounds=3)
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="a part of the proofs; default all")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="of what is coded; may be none")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU is seen; its tests run elsewhere on a pretended one", file=sys.stderr)
        return 2
    deadline = time.monotonic() + arguments.limit_seconds
    report = Report(arguments)
    results: dict[str, Any] = {"device": device(), "proofs": [], "speed": [], "aims": []}
    proofs_end = deadline - min(_SPEED_SECONDS, arguments.limit_seconds / 4)
    at_once = max(1, min(_MOST_AT_ONCE, len(os.sched_getaffinity(0)) // _CORES_EACH))
    for outcome in prove(arguments.tests, proofs_end - time.monotonic(), arguments.test_seconds, at_once):
        results["proofs"].append(outcome)
        report.write(results)
        because = f": {outcome['why']}" if outcome["outcome"] == "not reached" else ""
        seconds = outcome.get("seconds", "")
        print(f"{outcome['outcome']:11} {seconds:>6} {outcome['test']}{because}", flush=True)
    for numel in arguments.sizes:
        if time.monotonic() + _SIZE_SECONDS > deadline:
            results["speed"].append({"numel": numel, "what": "not reached"})
            continue
        try:
            results["speed"] += measure(torch.device("cuda", 0), numel, arguments.rounds)
            results["aims"] = aims(results["speed"])
        except Exception as error:  # such as too little memory; what was proven is still told
            results["speed"].append({"numel": numel, "what": "coding", "failed": why(error)})
        report.write(results)
    report.close(results)
    return summary(results)


def device() -> dict[str, Any]:
    """What the GPU and its libraries are."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def summary(results: dict[str, Any]) -> int:
    """Print what failed and why, and the counts last; the exit code."""
    for one in results["proofs"]:
        if one["outcome"] == "failed":
            print(f"\nFAILED {one['test']}\n{one['why'][-1500:]}")
    for row in results["speed"]:
        print(
            f"{row['numel']:>11} {row['what']:30} {row.get('median_milliseconds', row.get('failed', ''))}"
            + (f" ms, the GPU {row['device_milliseconds']}" if "device_milliseconds" in row else "")
        )
    for aim in results["aims"]:
        print(f"{'held' if aim['holds'] else 'MISSED':6} {aim['aim']}: {aim['found']}")
    outcomes = Counter(one["outcome"] for one in results["proofs"])
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "nothing was tried")
    return 1 if outcomes["failed"] or (results["proofs"] and not outcomes["proven"]) else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a machine with one GPU proves, in one command of at most 8 minutes, and how long coding takes there.

    make test-gpu
    python -m benchmarks.gpu --limit-seconds 300

Exit code 0 if all that was tried holds, 1 if something does not, 2 without a GPU.
"""

from __future__ import annotations

import sys
from collections import Counter

import torch

from benchmarks.gpu.proofs import prove
from benchmarks.gpu.speed import measure
from benchmarks.report import Report, make_parser

_SIZES = (1 << 20, 16 << 20, 256 << 20)


def main() -> int:
    parser = make_parser("gpu", __doc__, limit_seconds=400, rounds=3)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU is seen; its tests are skipped everywhere else", file=sys.stderr)
        return 2
    report = Report(arguments)
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "proofs": prove(["tests/gpu", "tests/kernels"], arguments.limit_seconds),
    }
    report.write(results)
    device = torch.device("cuda", torch.cuda.current_device())
    results["speed"] = [row for numel in _SIZES for row in measure(device, numel, arguments.rounds)]
    report.close(results)
    outcomes = Counter(one["outcome"] for one in results["proofs"])  # type: ignore[attr-defined]  # a list
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "nothing was tried")
    return 0 if outcomes["proven"] and not outcomes["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run the fault matrix, or a part of it.

    python -m benchmarks.faults
    python -m benchmarks.faults --algorithms bsp ssp --faults "SIGKILL in compute" NaN

Links are cut between network namespaces, and a disk is filled on a file system of its own: both need root.
"""

from __future__ import annotations

import sys

from benchmarks.faults.cells import ALGORITHMS, FAULTS, all_cells
from benchmarks.faults.matrix import AT_ONCE, Matrix, write
from benchmarks.faults.verdicts import Verdict
from benchmarks.report import make_parser


def main() -> int:
    parser = make_parser("fault-matrix", __doc__, at_once=AT_ONCE)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--faults", nargs="+", choices=tuple(FAULTS), default=tuple(FAULTS))
    arguments = parser.parse_args()
    chosen = [
        cell
        for cell in all_cells()
        if cell.algorithm in arguments.algorithms and cell.fault.name in arguments.faults
    ]
    verdicts = Matrix(arguments.at_once).run(chosen, _say)
    write(arguments.output, verdicts)
    wrong = sum(bool(verdict.wrong) for verdict in verdicts.values())
    print(f"{len(verdicts)} cells, {wrong} not as they must be: {arguments.output}")
    return 1 if wrong else 0


def _say(verdict: Verdict) -> None:
    seconds = "" if verdict.seconds is None else f" {verdict.seconds:.1f} s"
    print(f"{verdict.cell}: {verdict.outcome}{seconds} {'; '.join(verdict.wrong)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

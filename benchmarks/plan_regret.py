"""What it costs to follow the planner: what it calls fastest, as it was measured, beside what was fastest.

    python -m benchmarks.plan_regret

A choice is among all rows of one file of the lab with the same task, number of workers and rate, which are
predicted as in `plan_accuracy`; nothing is fitted. Its regret is the measured time of a step of the one that
is predicted to be the fastest, over that of the fastest, less 1. Quality is not looked at. Where each row has
a step alone beside it, all are taken to the middle one of these: a minute in which the machine was fast is no
merit of the contender that had it.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from benchmarks.plan_accuracy import HELD_OUT, Machine, Row, predicted, results, rows, summary
from benchmarks.report import dated, result_file


def choices(found: Sequence[Row], machine: Machine) -> list[tuple[Row, Row, int, float]]:
    """Of each choice the one that is predicted to be the fastest, the fastest, their number, the regret."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in found:
        groups[row.file, row.workload, row.workers, row.rate].append(row)
    made = []
    for held in map(_on_one_machine, groups.values()):
        if len({row.label for row in held}) > 1:
            chosen = min(held, key=lambda row: predicted(row, machine))
            best = min(held, key=lambda row: row.measured)
            made.append((chosen, best, len(held), chosen.measured / best.measured - 1))
    return made


def _on_one_machine(held: Sequence[Row]) -> list[Row]:
    """Rows as if all had been measured while a step alone took as long."""
    usual = median(row.alone_seconds for row in held)
    return [
        replace(row, alone_seconds=usual, measured=row.measured + usual - row.alone_seconds) for row in held
    ]


def report(made: Sequence[tuple[Row, Row, int, float]]) -> Iterator[str]:
    """The table, the largest regrets first."""
    yield "# Regret of the planner's choice\n"
    yield (__doc__ or "").split("\n\n")[2].replace("\n", " ").strip() + " Aim: 5 %.\n"
    yield "| choices | number | mean regret | median | 90th percentile | the fastest itself |"
    yield "|---|---|---|---|---|---|"
    for name, held in (
        ("all", made),
        ("2 and 4 workers", [one for one in made if one[0].workers != HELD_OUT]),
        (f"{HELD_OUT} workers", [one for one in made if one[0].workers == HELD_OUT]),
        ("a step alone beside each", [one for one in made if one[0].beside]),
    ):
        regrets = [one[3] for one in held]
        if regrets:
            right = sum(one[0] == one[1] for one in held) / len(held)
            mean, ninth = fmean(regrets), summary(regrets)[1]
            yield f"| {name} | {len(held)} | {mean:.1%} | {median(regrets):.1%} | {ninth:.1%} | {right:.0%} |"
    yield "\n| file | task | workers | rate | among | chosen | fastest | regret |"
    yield "|---|---|---|---|---|---|---|---|"
    for chosen, best, number, regret in sorted(made, key=lambda one: -one[3]):
        yield (
            f"| {chosen.file} | {chosen.workload} | {chosen.workers} | {chosen.rate or 'unshaped'} "
            f"| {number} | {_name(chosen)} | {_name(best)} | {regret:.1%} |"
        )


def _name(row: Row) -> str:
    return f"{row.label}, {row.period} steps, {1e3 * row.measured:.3g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=result_file, default=dated("plan-regret", "md"))
    arguments = parser.parse_args()
    found, _ = rows(results())
    lines = list(report(choices(found, Machine())))
    arguments.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:8]), arguments.output, sep="\n")


if __name__ == "__main__":
    main()

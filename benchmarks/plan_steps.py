"""How long steps take with each contender, each beside steps with nothing sent, which come just before.

    python -m benchmarks.plan_steps [--workloads digits] [--workers 2 4 8] [--rounds 3]

Nobody is tuned and nothing is evaluated: this is what a prediction of step times is held against
(`python -m benchmarks.plan_accuracy`). The machine's speed changes within minutes, so a step with nothing
sent that is measured once in a run says little of another minute's rows; here each row has its own. All rows
take turns, and each round begins with another. Before them, each contender's coding is timed as
`relaxcomm plan --measure` does. A file that is named again is continued.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product

import torch

from benchmarks.lab import resuming
from benchmarks.lab.crew import Crew, crew
from benchmarks.lab.entries import ENTRIES, Entry
from benchmarks.lab.network import end_in_order
from benchmarks.lab.networks import usable
from benchmarks.lab.recording import Log, begin
from benchmarks.lab.tables import Record
from benchmarks.lab.throttle import link_of
from benchmarks.lab.trial import Job
from benchmarks.lab.tuning import Rate, job_of
from benchmarks.lab.workloads import WORKLOADS
from benchmarks.plan_accuracy import written
from benchmarks.report import dated, result_file
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner.measuring import measure_coding

_LABELS = (
    *("ddp", "ddp_fp16", "periodic_averaging", "relaxcomm bsp", "relaxcomm local_sgd, plain"),
    *("relaxcomm local_sgd, late", "relaxcomm local_sgd, 8 bits", "relaxcomm local_sgd, 8 bits, late"),
    *("relaxcomm local_sgd, sparse, late", "relaxcomm diloco", "relaxcomm diloco, 8 bits, late"),
)
_RATES: dict[str, Rate] = {"100mbit": "100mbit", "1gbit": "1gbit", "unshaped": None}
_ALONE = {"digits": 96, "charlm": 24, "glyphs": 6}  # steps: half a second or more
_STEPS = {"digits": 48, "charlm": 32, "glyphs": 16}
_LONGEST_SECONDS = 12.0  # of a row; one whose averages take longer has fewer steps


@dataclass(frozen=True)
class Wanted:
    """A row.

    Args:
        entry: the contender.
        period: its period, in steps.
        rate: of the links.
    """

    entry: Entry
    period: int
    rate: Rate

    def told(self, workload: str, workers: int) -> Record:
        """What its records have in common."""
        place = {"workload": workload, "workers": workers, "rate": self.rate}
        return {**place, "label": self.entry.label, "period": self.period}

    def steps(self, workload: str, megabytes: float, workers: int) -> int:
        """Whole periods, at least two and as many as take about as long as other rows do."""
        each = 2 * (workers - 1) / workers * 1e6 * megabytes / link_of(self.rate).bytes_per_second
        most = max(1, math.floor(_LONGEST_SECONDS / each)) * self.period if each else math.inf
        return max(2, math.ceil(min(_STEPS[workload], most) / self.period)) * self.period


def run(
    crew: Crew, workload: str, wanted: Sequence[Wanted], rounds: int, log: Log, before: list[Record]
) -> None:
    """Measure all rows, round by round, but for those that were there `before`."""
    _measure_coding(wanted, crew.workers, log, before)
    model = WORKLOADS[workload].make(0).model
    megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    crew.run(_alone(workload, 0), None)  # the first use of a model is slow
    for number in range(rounds):
        turn = number * len(wanted) // rounds
        for one in (*wanted[turn:], *wanted[:turn]):
            told = {"round": number, **one.told(workload, crew.workers)}
            if any(told.items() <= record.items() for record in before):
                continue
            steps = one.steps(workload, megabytes, crew.workers)
            alone = crew.run(_alone(workload, number), one.rate)
            rate = WORKLOADS[workload].learning_rates[0]
            job = job_of(one.entry, workload, rate, one.period, number, steps=steps, every=0)
            record = crew.run(job, one.rate)
            log("step time", {**told, **record, "alone_seconds": alone["seconds"] / alone["steps"]})


def _measure_coding(wanted: Sequence[Wanted], workers: int, log: Log, before: list[Record]) -> None:
    """On one thread, as workers have, while they wait."""
    torch.set_num_threads(1)
    known = {one["label"] for one in before if one["kind"] == "coding" and one["workers"] == workers}
    for label, one in {one.entry.label: one for one in wanted}.items():
        if label not in known:
            settings = one.entry.settings(one.period)
            speeds = measure_coding(parse_algorithm(written(label, one.period, settings)), workers)
            log("coding", {"label": label, "workers": workers, "rate": None, "speeds": asdict(speeds)})


def _alone(workload: str, seed: int) -> Job:
    rate = WORKLOADS[workload].learning_rates[0]
    steps = _ALONE[workload]
    return Job(workload=workload, contender="nothing", learning_rate=rate, seed=seed, steps=steps, every=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--workers", nargs="+", type=int, default=[4])
    parser.add_argument("--rates", nargs="+", choices=list(_RATES), default=list(_RATES))
    parser.add_argument("--entries", nargs="+", choices=_LABELS, default=_LABELS, help="contenders")
    parser.add_argument("--periods", nargs="+", type=int, default=[4, 16], help="of those that have one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=result_file, default=dated("step-times", "jsonl"))
    arguments = parser.parse_args()
    end_in_order()
    log = begin(arguments.output, arguments)
    entries = [ENTRIES[label] for label in arguments.entries]
    wanted = [
        Wanted(entry, period, _RATES[rate])
        for rate, entry in product(arguments.rates, entries)
        for period in (entry.periods if len(entry.periods) == 1 else arguments.periods)
    ]
    for workload, workers in product(arguments.workloads, arguments.workers):
        before = resuming.read(arguments.output)
        with crew(workers, network=usable("namespaces")) as hosts:
            run(hosts, workload, wanted, arguments.rounds, log, before)


if __name__ == "__main__":
    main()

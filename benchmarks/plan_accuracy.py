"""What the planner says of the lab's runs beside what was measured there.

    python -m benchmarks.plan_accuracy

Each row is one configuration of one file of the lab: an algorithm, its period, a task, a number of workers
and a rate. The planner is told these, and the time of a step with nothing sent on as many workers: just
before the row in `step-times-*.jsonl`, once in a run in `lab-*.jsonl`, whose machine was seldom as fast then
as in the row. Of the row's own times it knows nothing. Its prices are those of `auto`, made before; with
`--fit` how fast a processor codes and works, and what a link carries of its rate, are fitted to rows of two
and four workers, and those of eight are held out. It writes a dated table with all misses.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.lab.throttle import link_of
from benchmarks.lab.workloads import WORKLOADS
from benchmarks.report import RESULTS, dated, result_file
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.tensors.items import Item

HELD_OUT = 8  # workers
_EVERY = 6  # of the rows that may be fitted to, for time
_TIMED = ("step time", "final", "tuning")
_LEFT_OUT = {
    "ddp_powersgd": "its hook sends its first steps in full",
    "relaxcomm auto": "chooses by what it measures in the run",
    "relaxcomm selsync": "exchanges when gradients change",
    "relaxcomm selsync, sparse, late": "exchanges when gradients change",
    "relaxcomm muloco": "its optimizer takes longer than that of the step alone",
    "relaxcomm bsp, muon": "its optimizer takes longer than that of the step alone",
}
_FITTED = "they were fitted to rows of two and four workers, those of eight were held out"
_NOT_FITTED = (
    "nothing was fitted: a processor's are those of `auto`, which were set from earlier runs of the lab"
)
_OTHERS = {  # what other frameworks' averaging comes to, as a rule
    "ddp": lambda period: {"name": "bsp"},
    "ddp_fp16": lambda period: {
        "rules": [
            {"payload": "gradients", "exchange": "all_reduce", "compressor": {"cast": {"dtype": "float16"}}}
        ]
    },
    "periodic_averaging": lambda period: {"name": "local_sgd", "steps": period},
}


@dataclass(frozen=True)
class Machine:
    """What is fitted.

    Args:
        carried: the share of a link's rate that messages have.
        latency_seconds: of a message on the lab's links.
        speeds: of a worker's processor.
    """

    carried: float = 0.95
    latency_seconds: float = 0.0002
    speeds: Speeds = field(default_factory=Speeds)


@dataclass(frozen=True)
class Row:
    """One configuration of one file.

    Args:
        file: of the lab.
        workload, workers, rate, label, period: what ran.
        settings: of the contender.
        steps: of a run.
        alone_seconds: a step with nothing sent.
        cores: of the machine.
        measured: seconds a step, the median of the runs.
        runs: their number.
        beside: whether each run has a step with nothing sent of its own, just before it.
        coding: seconds a bucket and an entry, as measured before the run; None for those of `auto`.
    """

    file: str
    workload: str
    workers: int
    rate: str | None
    label: str
    period: int
    settings: str
    steps: int
    alone_seconds: float
    cores: int
    measured: float
    runs: int
    beside: bool = False
    coding: tuple[float, float] | None = None


def rows(paths: Sequence[Path]) -> tuple[list[Row], dict[str, int]]:
    """What can be predicted, and how many runs cannot, by label."""
    found: list[Row] = []
    left_out: dict[str, int] = defaultdict(int)
    for path in paths:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        if any(one["kind"] == "final" or "alone_seconds" in one for one in records):
            found += _rows_of(path.stem, records, left_out)
    return found, dict(left_out)


def _rows_of(file: str, records: Sequence[Mapping[str, Any]], left_out: dict[str, int]) -> Iterator[Row]:
    cores = next(one["machine"]["cores"] for one in records if one["kind"] == "environment")
    alone: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    beside: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    speeds = {(one["label"], one["workers"]): one["speeds"] for one in records if one["kind"] == "coding"}
    coding = {
        place: (one["coding_base_seconds"], one["coding_entry_seconds"]) for place, one in speeds.items()
    }
    for one in records:
        if one["kind"] not in _TIMED or one.get("derived") or "counted_in" in one:
            continue
        seconds, workers = one["seconds"] / _steps(one), one.get("workers", 4)
        if one["label"] == "nothing":
            alone[one["workload"], workers].append(seconds)
            alone[one["workload"], workers, one["rate"]].append(seconds)
        elif one["label"] in _OTHERS or (one["contender"] == "relaxcomm" and one["label"] not in _LEFT_OUT):
            settings = json.dumps(one["settings"], sort_keys=True)
            place = one["workload"], workers, one["rate"]
            key = (*place, one["label"], one["period"], settings, _steps(one))
            groups[key].append(seconds)
            if "alone_seconds" in one:
                beside[key].append(one["alone_seconds"])
        else:
            left_out[one["label"]] += 1
    for key, times in groups.items():
        if steps := beside.get(key) or alone.get(key[:3]) or alone.get(key[:2]):
            yield Row(
                file,
                *key,
                median(steps),
                cores,
                median(times),
                len(times),
                key in beside,
                coding.get((key[3], key[1])),
            )


def results() -> list[Path]:
    """The files of the lab that have rows."""
    return sorted([*RESULTS.glob("lab-*.jsonl"), *RESULTS.glob("step-times-*.jsonl")])


def _steps(record: Mapping[str, Any]) -> int:
    return int(record["steps"] or WORKLOADS[record["workload"]].steps)


def predicted(row: Row, machine: Machine) -> float:
    """Seconds a step."""
    link = link_of(row.rate)
    rate = link.bytes_per_second * machine.carried
    crowding = max(1.0, row.workers / row.cores)
    speeds = machine.speeds
    if row.coding is not None:
        speeds = Speeds(speeds.work_base_seconds, speeds.work_byte_seconds, *row.coding)
    scenario = Scenario(
        workers=row.workers,
        step_times=StepTimes(row.alone_seconds),
        links=OwnLinks(replace(link, bytes_per_second=rate, latency_seconds=machine.latency_seconds)),
        speeds=speeds,
        crowding=crowding,
    )
    algorithm = parse_algorithm(written(row.label, row.period, json.loads(row.settings)))
    return Replay(algorithm, _model(row.workload), scenario).run(row.steps, first=0).step_seconds


def written(label: str, period: int, settings: Mapping[str, Any]) -> Any:
    """The algorithm of a contender, as it would be configured."""
    return _OTHERS[label](period) if label in _OTHERS else settings["algorithm"]


@lru_cache
def _model(workload: str) -> tuple[Item, ...]:
    model = WORKLOADS[workload].make(0).model
    return tuple(Item(name, one) for name, one in model.named_parameters() if one.requires_grad)


def error(row: Row, machine: Machine) -> float:
    """Relative, with its sign."""
    return predicted(row, machine) / row.measured - 1


def fit(known: Sequence[Row], machine: Machine, turns: int = 2) -> Machine:
    """Change one number after the other as long as the median and 90th percentile of the misses shrink."""
    best = _misses(known, machine)
    for _ in range(turns):
        before = best
        for name in ("carried", "latency_seconds", *asdict(machine.speeds)):
            for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2.0):
                tried = _changed(machine, name, factor)
                if tried.carried <= 1 and (miss := _misses(known, tried)) < best:
                    machine, best = tried, miss
        if best == before:
            break
    return machine


def _changed(machine: Machine, name: str, factor: float) -> Machine:
    if hasattr(machine, name):
        return replace(machine, **{name: getattr(machine, name) * factor})
    speeds = replace(machine.speeds, **{name: getattr(machine.speeds, name) * factor})
    return replace(machine, speeds=speeds)


def _misses(known: Sequence[Row], machine: Machine) -> float:
    middle, ninth = summary([error(row, machine) for row in known])
    return middle + ninth / 2


def summary(errors: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile of the sizes."""
    sizes = [abs(one) for one in errors]
    return median(sizes), quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]


def report(
    found: Sequence[Row], machine: Machine, left_out: Mapping[str, int], *, fitted: bool
) -> Iterator[str]:
    """The table, the largest misses first."""
    errors = {row: error(row, machine) for row in found}
    yield "# Prediction and measurement\n"
    yield (
        "Seconds a step of the lab's runs (`lab-*.jsonl`, and `step-times-*.jsonl`, where each row has a "
        "step with nothing sent just before it), predicted by the planner from the configuration and the "
        "time of that step, beside what was measured "
        "(`python -m benchmarks.plan_accuracy`). Prices: "
        f"`{json.dumps(asdict(machine))}`; "
        f"{_FITTED if fitted else _NOT_FITTED}. Aims: median 10 %, 90th percentile 20 %.\n"
    )
    yield "| rows | number | median miss | 90th percentile | within 10 % | within 20 % |"
    yield "|---|---|---|---|---|---|"
    parts: dict[str, list[Row]] = {"all": list(found)}
    parts["2 and 4 workers"] = [row for row in found if row.workers != HELD_OUT]
    parts[f"{HELD_OUT} workers"] = [row for row in found if row.workers == HELD_OUT]
    named = "a step alone beside each"
    parts[named] = [row for row in found if row.beside]
    parts[f"{named}, 2 and 4 workers"] = [row for row in parts[named] if row.workers != HELD_OUT]
    parts[f"{named}, {HELD_OUT} workers"] = [row for row in parts[named] if row.workers == HELD_OUT]
    for name in ("workload", "rate", "label"):
        for row in found:
            parts.setdefault(getattr(row, name) or "unshaped", []).append(row)
    for name, held in parts.items():
        if held:
            sizes = [abs(errors[row]) for row in held]
            middle, ninth = summary(sizes)
            near = [sum(size <= limit for size in sizes) / len(sizes) for limit in (0.1, 0.2)]
            yield f"| {name} | {len(held)} | {middle:.1%} | {ninth:.1%} | {near[0]:.0%} | {near[1]:.0%} |"
    yield "\nNot predicted, by number of runs:\n"
    for label, number in sorted(left_out.items()):
        yield f"- {label}: {number}; {_LEFT_OUT.get(label, 'not an algorithm of ours')}"
    heads = "file task workers rate contender period steps alone measured predicted miss"
    yield "\n| " + " | ".join(heads.split()) + " |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for row in sorted(found, key=lambda one: -abs(errors[one])):
        yield (
            f"| {row.file} | {row.workload} | {row.workers} | {row.rate or 'unshaped'} | {row.label} "
            f"| {row.period} | {row.steps} | {_ms(row.alone_seconds)} | {_ms(row.measured)} "
            f"| {_ms(row.measured * (1 + errors[row]))} | {errors[row]:+.0%} |"
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit to the rows of two and four workers")
    parser.add_argument("--machine", type=json.loads, help="what was fitted before, as JSON")
    parser.add_argument("--output", type=result_file, default=dated("plan-accuracy", "md"))
    arguments = parser.parse_args()
    found, left_out = rows(results())
    machine = Machine()
    if arguments.machine:
        machine = Machine(**{**arguments.machine, "speeds": Speeds(**arguments.machine["speeds"])})
    if arguments.fit:
        known = [row for row in found if row.workers != HELD_OUT]
        machine = fit(known[::_EVERY], machine)
        print(json.dumps(asdict(machine)), flush=True)
    for name, held in (
        ("2 and 4 workers", [row for row in found if row.workers != HELD_OUT]),
        (f"{HELD_OUT} workers", [row for row in found if row.workers == HELD_OUT]),
    ):
        middle, ninth = summary([error(row, machine) for row in held])
        print(f"{name}: {len(held)} rows, median miss {middle:.1%}, 90th percentile {ninth:.1%}")
    assert math.isfinite(middle)
    arguments.output.write_text("\n".join(report(found, machine, left_out, fitted=arguments.fit)) + "\n")
    print(arguments.output)


if __name__ == "__main__":
    main()

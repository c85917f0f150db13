"""Forecasts as a table on a terminal, as plain lines elsewhere, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from relaxcomm.cli.rows import show_rows, show_text
from relaxcomm.planner.forecast import UTILISATIONS, Forecast
from relaxcomm.planner.scenario import Scenario
from relaxcomm.system.quantities import bandwidth, data_size, duration

_HEADINGS = (
    "algorithm",
    "workers",
    "step",
    "exposed",
    "hidden",
    "sent",
    "busiest link",
    "utilisation",
    "memory",
)


def show_forecasts(
    found: Sequence[Forecast],
    failed: Mapping[str, str],
    num_parameters: int,
    scenario: Scenario,
    *,
    measured: bool,
) -> None:
    """Print one row a forecast, the name first; below them what there is to say, and what cannot run."""
    if found:
        never = [one for one in UTILISATIONS if all(each.bandwidths[one] is None for each in found)]
        shares = [one for one in UTILISATIONS if one not in never]
        headings = [*_HEADINGS, *map(_heading, shares)]
        headings += ["goodput"] if found[0].goodput is not None else []
        rows = [_cells(one, num_parameters, shares) for one in found]
        show_rows(headings, rows, title=_title(num_parameters, scenario), named_by=2)
        if never:
            why = "latency, coding or waiting for others take too long"
            show_text(f"{', '.join(map(_heading, never))}  never, at any bandwidth: {why}")
    if measured:
        without = "; --jitter 0 plans without its jitter" if scenario.step_times.jitter_seconds else ""
        show_text(f"step alone  {_alone(scenario)}, measured on this machine{without}")
    said: dict[tuple[int, str], list[str]] = {}
    for one in found:
        for remark in one.remarks:
            said.setdefault((one.workers, remark), []).append(one.name)
    for (workers, remark), names in said.items():
        show_text(f"{', '.join(names)}, {workers} workers: {remark}")
    for name, why in failed.items():
        show_text(f"{name}  not possible: {why}")


def as_json(
    found: Sequence[Forecast], failed: Mapping[str, str], num_parameters: int, scenario: Scenario
) -> dict[str, Any]:
    """The same for machines: seconds, bytes, and bytes a second."""
    return {
        "parameters": num_parameters,
        "step_times": asdict(scenario.step_times),
        "slowest_link": {
            "bytes_per_second": _number(scenario.links.slowest.bytes_per_second),
            "latency_seconds": scenario.links.slowest.latency_seconds,
        },
        "forecasts": [
            {
                "algorithm": one.name,
                "workers": one.workers,
                **asdict(one.replayed),
                "utilisation": one.replayed.utilisation,
                "useful_share": one.useful_share,
                "goodput": one.goodput,
                "memory_bytes": one.memory_bytes * num_parameters,
                "bandwidths": {str(share): rate for share, rate in one.bandwidths.items()},
                "remarks": list(one.remarks),
            }
            for one in found
        ],
        "not_possible": dict(failed),
    }


def _title(num_parameters: int, scenario: Scenario) -> str:
    slowest = "links" if scenario.links.uniform else "slowest link"
    words = scenario.links.slowest.words
    return f"{num_parameters:,} parameters, {_alone(scenario)} a step alone, {slowest} {words}"


def _alone(scenario: Scenario) -> str:
    seconds, jitter = scenario.step_times.seconds, scenario.step_times.jitter_seconds
    return duration(seconds) + (f" ± {duration(jitter)}" if jitter else "")


def _heading(utilisation: float) -> str:
    return f"for {utilisation:.0%}"


def _cells(one: Forecast, num_parameters: int, shares: Sequence[float]) -> list[str]:
    step = one.replayed
    return [
        one.name,
        str(one.workers),
        duration(step.step_seconds),
        duration(step.exposed_seconds),
        duration(step.hidden_seconds),
        data_size(step.sent_bytes),
        data_size(step.busiest_bytes),
        f"{step.utilisation:.1%}",
        data_size(one.memory_bytes * num_parameters),
        *(_rate(one.bandwidths[share]) for share in shares),
        *([] if one.goodput is None else [f"{one.goodput:.1%}"]),
    ]


def _rate(bytes_per_second: float | None) -> str:
    if bytes_per_second is None:
        return "never"
    if not bytes_per_second:
        return "any"
    return bandwidth(bytes_per_second)


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return None if value == float("inf") else value

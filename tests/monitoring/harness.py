"""Trains small models with metrics, and reads what their exporters show."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def fetch(url: str, **headers: str) -> str:
    """The body of an answer."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return str(answer.read().decode())


def parse(text: str) -> Series:
    """Values by name and labels, read by prometheus-client's own parser."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    """The sum over all series of that name and these labels; KeyError if there is none."""
    found = [v for (n, have), v in series.items() if n == name and frozenset(labels.items()) <= have]
    if not found:
        raise KeyError((name, labels))
    return sum(found)


def read_log(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The lines of the one log of a rank."""
    (path,) = folder.glob(f"*.rank{rank}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]

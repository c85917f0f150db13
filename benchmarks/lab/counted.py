"""Tuning trials of earlier results: steps to quality depend on no network, so they need not be run twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.lab import tables
from benchmarks.lab.trial import Job

Counted = Mapping[str, Mapping[str, Any]]
_LOGGED_ANEW = ("kind", "workers", "label")  # by the run that takes a trial over
_KEYS = [field.name for field in fields(Job)]


def key_of(workers: int, job: Mapping[str, Any]) -> str:
    """What trials have in common that count the same steps: all that a job says, and how many workers."""
    return json.dumps([workers, *(job[name] for name in _KEYS)], sort_keys=True)


def find(counted: Counted, workers: int, job: Job) -> Mapping[str, Any] | None:
    """The record of a trial like this one, with the file it comes from, or None."""
    return counted.get(key_of(workers, asdict(job)))


def read(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The tuning trials in result files, by `key_of`; of equal ones the last."""
    found = {}
    for path in paths:
        for record in tables.read(path):
            if record["kind"] == "tuning":
                kept = {name: value for name, value in record.items() if name not in _LOGGED_ANEW}
                found[key_of(record["workers"], record)] = {"counted_in": path.name, **kept}
    return found

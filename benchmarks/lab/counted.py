"""Tuning trials of earlier results: steps to quality depend on no network, so they need not be run twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.lab.trial import Job

Counted = Mapping[str, Mapping[str, Any]]
_KEYS = [field.name for field in fields(Job)]


def key_of(workers: int, job: Mapping[str, Any]) -> str:
    """What trials have in common that count the same steps: all that a job says, and how many workers."""
    return json.dumps([workers, *(job[name] for name in _KEYS)], sort_keys=True)


def find(counted: Counted, workers: int, job: Job) -> dict[str, Any] | None:
    """The record of a trial like this one, with the file it comes from, or None."""
    found = counted.get(key_of(workers, asdict(job)))
    return None if found is None else dict(found)


def read(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The tuning trials in result files, by `key_of`; of equal ones the last."""
    found = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] == "tuning":
                key = key_of(record["workers"], record)
                found[key] = {"counted_in": path.name, **_without(record, "kind", "workers", "label")}
    return found


def _without(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}

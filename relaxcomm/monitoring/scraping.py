"""Reads the exporters of a running job, as `relaxcomm top` does."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True)
class Reading:
    """What one rank showed.

    Args:
        rank: whose.
        run: name of its run.
        seconds: when it was asked, on a clock of the reader's.
        values: sums over all labels, by name; steps also by outcome as `steps.local`.
        facts: labels of `relaxcomm_info`.
        evaluations: held-out measures by name.
    """

    rank: int
    run: str
    seconds: float
    values: Mapping[str, float]
    facts: Mapping[str, str]
    evaluations: Mapping[str, float] = field(default_factory=dict)


class Reader:
    """Finds a job's ranks through rank 0 and asks each.

    Args:
        url: of rank 0: "host:port", with or without scheme and path.
    """

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        self.url = f"{parts.scheme}://{parts.netloc}"

    def ranks(self) -> dict[int, str]:
        """Where each rank is.

        Raises: OSError or ValueError if rank 0 does not answer as one.
        """
        found = json.loads(_fetch(f"{self.url}/sd"))
        return {int(one["labels"]["rank"]): f"http://{one['targets'][0]}" for one in found}

    def read(self, places: Mapping[int, str], now: float) -> dict[int, Reading]:
        """Those ranks that answer."""
        with ThreadPoolExecutor(max_workers=min(32, len(places) or 1)) as pool:
            found = pool.map(lambda rank: _try(rank, places[rank], now), places)
            return {one.rank: one for one in found if one is not None}


def _try(rank: int, place: str, now: float) -> Reading | None:
    try:
        return parse(rank, _fetch(f"{place}/metrics"), now)
    except (OSError, ValueError):
        return None


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as error:
        error.close()
        raise


def parse(rank: int, text: str, now: float) -> Reading:
    """A reading from the text of `/metrics`."""
    values: dict[str, float] = {}
    facts: dict[str, Any] = {}
    evaluations: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("relaxcomm_").removesuffix("_total")
            if name == "info":
                facts = dict(sample.labels)
            if name == "evaluation":
                evaluations[sample.labels["metric"]] = sample.value
            if "outcome" in sample.labels:
                values[f"{name}.{sample.labels['outcome']}"] = sample.value
            values[name] = values.get(name, 0.0) + sample.value
    return Reading(rank, facts.get("run", ""), now, values, facts, evaluations)

"""Reads the exporters of a running job, as `relaxcomm top` does; what they answer is not to be relied on."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import shown
from relaxcomm.monitoring.metrics_settings import DEFAULT_PORT
from relaxcomm.system.environment import LAST_PORT

_SILENT_SECONDS = 2.0
_ANSWER_SECONDS = 5.0  # for all of it, however it trickles
_LOOK_SECONDS = 10.0  # after which no further rank is asked
_LARGEST_BYTES = 4_194_304
_MOST_RANKS = 10_000
_LONGEST_LABEL = 64
_PREFIX = "relaxcomm_"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


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
        url: of rank 0: "host:port", with or without scheme and path; without a port that of the first rank
            on a host, and 443 for https.

    Raises: ConfigError for what is none.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.rpartition("://")
        address = rest.partition("/")[0]
        if scheme not in ("", "http", "https") or not _is_address(address) or address.isdigit():
            raise ConfigError(
                f"{shown(url)} is not where a job shows its metrics; write HOST:PORT, without a user or "
                "password, such as 127.0.0.1:9400"
            )
        if scheme != "https" and urllib.parse.urlsplit(f"//{address}").port is None:
            address = f"{address}:{DEFAULT_PORT}"
        self.url = f"{scheme or 'http'}://{address}"

    def ranks(self) -> dict[int, str]:
        """Where each rank is.

        Raises: OSError or ValueError if rank 0 does not answer as one.
        """
        return _addresses(_fetch(f"{self.url}/sd"))

    def read(self, addresses: Mapping[int, str], now: float) -> dict[int, Reading]:
        """Readings of the ranks that answer."""
        deadline = time.monotonic() + _LOOK_SECONDS
        with ThreadPoolExecutor(max_workers=min(32, len(addresses) or 1)) as pool:
            found = pool.map(lambda rank: _try(rank, addresses[rank], now, deadline), addresses)
            return {one.rank: one for one in found if one is not None}


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and int(found[2] or 0) <= LAST_PORT


def _addresses(text: str) -> dict[int, str]:
    """Ranks and their addresses, out of the answer of `/sd`; a rank says where it is, and nothing else."""
    try:
        found = json.loads(text)
        pairs = [(str(one["labels"]["rank"]), str(one["targets"][0])) for one in found[:_MOST_RANKS]]
    except (LookupError, TypeError, RecursionError):
        raise ValueError("what it answers is no list of ranks") from None
    for rank, address in pairs:
        if not re.fullmatch("[0-9]{1,9}", rank) or not _is_address(address):
            raise ValueError(f"rank {rank[:20]!r} at {address[:100]!r} cannot be")
    return {int(rank): f"http://{address}" for rank, address in pairs}


def _try(rank: int, address: str, now: float, deadline: float) -> Reading | None:
    if time.monotonic() > deadline:
        return None
    try:
        return parse(rank, _fetch(f"{address}/metrics"), now)
    except (OSError, ValueError):
        return None


def _fetch(url: str) -> str:
    """What a server answers; neither redirections nor proxies are followed.

    Raises: OSError or ValueError.
    """
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=_SILENT_SECONDS)
    timer = threading.Timer(_ANSWER_SECONDS, _hang_up, (connection,))
    timer.daemon = True
    timer.start()
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"HTTP status {answer.status}")
        data = answer.read(_LARGEST_BYTES + 1)
    except http.client.HTTPException as error:
        raise ValueError(f"no HTTP: {type(error).__name__}: {str(error)[:100]}") from None
    finally:
        timer.cancel()
        connection.close()
    if len(data) > _LARGEST_BYTES:
        raise ValueError(f"an answer of more than {_LARGEST_BYTES:,} bytes")
    if answer.length:
        raise ValueError("the answer is cut off")
    return data.decode()


def _hang_up(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):  # not yet connected, or no more
        connection.sock.shutdown(socket.SHUT_RDWR)


def parse(rank: int, text: str, now: float) -> Reading:
    """A reading from the text of `/metrics`.

    Raises: ValueError if it is none.
    """
    try:
        families = list(text_string_to_metric_families(text))
        found = [(family.type, sample) for family in families for sample in family.samples]
        # A whole number may be too large for that.
        samples = [(kind, sample._replace(value=float(sample.value))) for kind, sample in found]
    except Exception as error:  # the parser trusts what it reads
        raise ValueError(f"no metrics: {type(error).__name__}") from None
    values: dict[str, float] = {}
    facts: dict[str, Any] = {}
    evaluations: dict[str, float] = {}
    for kind, sample in samples:
        name = sample.name.removeprefix(_PREFIX)
        if name == sample.name:  # the program's own
            continue
        name = name if kind == "gauge" else name.removesuffix("_total")  # a value may be called so
        if name == "info":
            facts = {label: _printable(value) for label, value in sample.labels.items()}
        if name == "evaluation" and "metric" in sample.labels:
            evaluations[_printable(sample.labels["metric"])] = sample.value
        if "outcome" in sample.labels:
            values[f"{name}.{sample.labels['outcome']}"] = sample.value
        values[name] = values.get(name, 0.0) + sample.value
    counted = {name: value for name, value in values.items() if math.isfinite(value) or name == "loss"}
    return Reading(rank, facts.get("run", ""), now, counted, facts, evaluations)


def _printable(text: str) -> str:
    """Text that does nothing to a terminal but stand there."""
    return "".join(letter for letter in text[:_LONGEST_LABEL] if letter.isprintable())

"""A simulated link, how fast and how far, and the network that ranks of a simulation find."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import meant, shown
from relaxcomm.network.operations import Operation
from relaxcomm.system.quantities import bandwidth, in_units

_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {"b": 1, "kb": 1024, "mb": 1024**2}  # as `tc` has them


@dataclass(frozen=True)
class Link:
    """The network of a simulation.

    Args:
        latency_seconds: of a message; a ring of N ranks reduces with 2 (N - 1) that wait for each other.
        bytes_per_second: at which a rank's bytes leave it.
        burst_bytes: that leave at once after a rest, as of a token bucket: `tc`'s, or a cloud's.

    Raises: ConfigError for what is no number, is negative, or takes no bytes.

    Example:
        >>> import torch
        >>> from relaxcomm import Link, attach, simulate
        >>> def exchange(group):
        ...     model = torch.nn.Linear(1000, 1)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     with attach(model, optimizer, "local_sgd", process_group=group) as engine:
        ...         begin = group.time()
        ...         engine.close(average=True)
        ...         return round(group.time() - begin, 3)
        >>> simulate(exchange, 2, link=Link(latency_seconds=0.1, bytes_per_second=1e6))
        [0.204, 0.204]
    """

    latency_seconds: float = 0.0
    bytes_per_second: float = float("inf")
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency_seconds", "bytes_per_second", "burst_bytes"):
            value, is_rate = getattr(self, name), name == "bytes_per_second"
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not (value > 0 if is_rate else 0 <= value < math.inf):
                allowed = "a number above 0" if is_rate else "a finite number, 0 or more"
                raise ConfigError(
                    f"Link: {name} = {shown(value)} is not allowed: write {allowed}; the command line takes "
                    'a link in words, such as "100mbit,5ms"'
                )

    @property
    def burst_seconds(self) -> float:
        """Seconds of the link's time that bytes may take in advance after a rest."""
        return self.burst_bytes / self.bytes_per_second

    @property
    def words(self) -> str:
        """What tables and pictures say.

        Example:
            >>> parse_link("100mbit,5ms").words, parse_link("100mbit,5ms,256kb").words
            ('100 Mbit/s, 5 ms', '100 Mbit/s, 5 ms, 256 KiB at once')
        """
        words = [bandwidth(self.bytes_per_second)]
        if self.latency_seconds:
            words.append(in_units(self.latency_seconds, _SECONDS))
        if self.burst_bytes:
            words.append(f"{in_units(self.burst_bytes, {'B': 1, 'KiB': 1024, 'MiB': 1024**2})} at once")
        return ", ".join(words)


class SimulatedNetwork(ABC):
    """What stands between ranks in virtual time."""

    @abstractmethod
    def link(self, operation: Operation, rank: int, world_size: int, rule: str) -> Link:
        """The link that a rank's part of an operation finds.

        Args:
            operation: what is exchanged.
            rank: whose part.
            world_size: number of ranks.
            rule: of its label.
        """


class EqualLinks(SimulatedNetwork):
    """Every rank has a link of its own to a network that is faster than all of them.

    Args:
        link: of each.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def link(self, operation: Operation, rank: int, world_size: int, rule: str) -> Link:
        return self._link


def parse_link(text: str) -> Link:
    """A link from its rate and, if it has them, its latency and burst, in `tc`'s words.

    Args:
        text: such as "100mbit", "1gbit", "100mbit,5ms" or "100mbit,5ms,256kb".

    Raises: ConfigError.
    """
    rate, *more = (part.strip() for part in text.split(",", maxsplit=2))
    return Link(
        bytes_per_second=parse_rate(rate),
        latency_seconds=_parse("a latency", more[0], _SECONDS, "5ms") if more else 0.0,
        burst_bytes=_parse("a burst", more[1], _BYTES, "256kb") if len(more) > 1 else 0.0,
    )


def parse_rate(text: str) -> float:
    """Bytes a second of a rate in `tc`'s words, such as "100mbit".

    Raises: ConfigError.
    """
    rate = _parse("a rate", text, _BITS, "100mbit") / 8
    if rate == 0:
        raise ConfigError(f"a rate is above 0, got {text!r}")
    return rate


def _parse(what: str, text: str, units: Mapping[str, float], example: str) -> float:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(units)})", text.lower())
    if found is None:
        number = re.match(r"[\d.]+(?=\s*[a-z])", text.lower())
        near = meant(text, [f"{number[0]}{unit}" for unit in units] if number else [])
        raise ConfigError(
            f'{what} is a number of {", ".join(units)}, such as "{example}"; got {shown(text)}{near}'
        )
    value = float(found[1]) * units[found[2]]
    if value == math.inf:
        raise ConfigError(
            f"{what} of {shown(text)} is more than a number can hold; write one such as {example!r}"
        )
    return value

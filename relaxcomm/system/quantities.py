"""Bytes, seconds and bandwidths in words, with three digits and never an exponent."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise


def number(value: float) -> str:
    """Three digits; from a thousand on, whole numbers.

    Example:
        >>> number(0.01234), number(12345.6)
        ('0.0123', '12,346')
    """
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def data_size(number_bytes: float) -> str:
    """Bytes in decimal units.

    Example:
        >>> data_size(1_234_567)
        '1.23 MB'
    """
    return in_units(number_bytes, {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12})


def duration(seconds: float) -> str:
    """A time in a unit that suits it.

    Example:
        >>> duration(0.0123), duration(5400.0)
        ('12.3 ms', '90 min')
    """
    if not seconds:
        return "0 s"
    return in_units(seconds, {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0})


def bandwidth(bytes_per_second: float) -> str:
    """Bytes a second as networks are sold, in bits.

    Example:
        >>> bandwidth(12_500_000)
        '100 Mbit/s'
    """
    return in_units(8 * bytes_per_second, {"kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9})


def in_units(value: float, units: Mapping[str, float]) -> str:
    """In the first unit of which it is fewer than a thousand, and less than two of the next one.

    Args:
        value: to be told.
        units: how much each is, from the smallest on.
    """
    for name, following in pairwise(units):
        if abs(value) < min(999.5 * units[name], 2 * units[following]):
            return f"{number(value / units[name])} {name}"
    last = list(units)[-1]
    return f"{number(value / units[last])} {last}"

"""The times of coding that are aimed at on an H200, beside those that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SMALL, LARGE = 16 << 20, 1 << 30
ENCODE_BYTES = 5
"""Of an entry in 8 bits: read once, and its code written."""


def aims(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each aim for which there is a measurement, what was found, and whether it holds.

    An encoder may write into its input, so each run has a copy of it, whose own time is taken off.

    Args:
        rows: of `speed.measure`, of several sizes.

    Example:
        >>> rows = [
        ...     {"what": name, "numel": SMALL, "median_milliseconds": time}
        ...     for name, time in [("a copy", 0.03), ("gaussian_k, encode", 0.15), ("topk", 2.4)]
        ... ]
        >>> for one in aims(rows):
        ...     print(one["aim"], one["found"], one["holds"])
        gaussian_k, encode 16 M entries: at most 0.15 ms 0.12 True
        gaussian_k, encode 16 M entries: ahead of topk by 10 times 20.0 True
    """
    times = {(row["numel"], row["what"]): row.get("median_milliseconds") for row in rows}

    def taken(numel: int, what: str) -> float | None:
        whole, copy = times.get((numel, what)), times.get((numel, "a copy"))
        return whole - copy if whole is not None and copy is not None else None

    found = []
    for numel, label, most in ((SMALL, "16 M", 0.15), (LARGE, "1 G", 5.5)):
        ours, theirs = taken(numel, "gaussian_k, encode"), times.get((numel, "topk"))
        if ours is not None:
            found.append(_held(f"gaussian_k, encode {label} entries: at most {most} ms", ours, most=most))
            if theirs is not None:
                label = f"gaussian_k, encode {label} entries: ahead of topk by 10 times"
                found.append(_held(label, theirs / ours, least=10))
    encode, both = taken(LARGE, "quantize, encode"), taken(LARGE, "quantize, encode and decode")
    if encode is not None:
        speed = LARGE * ENCODE_BYTES / encode / 1e9
        found.append(_held("8 bits, encode 1 G entries: at least 3.4 TB/s", speed, least=3.4))
        if both is not None:
            found.append(
                _held("8 bits, decode 1 G entries of 4 workers: at most 2.5 ms", both - encode, most=2.5)
            )
    return found


def _held(aim: str, value: float, *, most: float = float("inf"), least: float = 0.0) -> dict[str, Any]:
    return {"aim": aim, "found": round(value, 4), "holds": least <= value <= most}

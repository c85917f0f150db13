"""What `relaxcomm top` shows of a job: one row a rank, from two readings of each."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from relaxcomm.monitoring.scraping import Reading
from relaxcomm.system.quantities import data_size, duration, number

_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 60
_LEFT_OUT = ("saved", "reduction", "LSSR", "sent/s", "exposed", "step")  # in this order, where it is narrow
_GAP = 2
_SLOW = 1.15  # times the median computing time


@dataclass(frozen=True)
class Row:
    """One rank.

    Args:
        rank: whose.
        steps: since the start.
        step_seconds: mean of the steps since the reading before, or None if there were none.
        compute_seconds: the part of it without waiting.
        exposed: share of it spent waiting.
        sent_per_second: bytes.
        saved_bytes: what was not sent since the start.
        reduction: how many times fewer bytes were sent; None if none were.
        lssr: local steps as a share of all.
        evaluations: latest held-out measures by name.
        loss: latest, or None.
        losses: earlier ones, oldest first.
        note: "slowest", "stands", "silent" or "".
    """

    rank: int
    steps: int = 0
    step_seconds: float | None = None
    compute_seconds: float | None = None
    exposed: float | None = None
    sent_per_second: float | None = None
    saved_bytes: float = 0.0
    reduction: float | None = None
    lssr: float | None = None
    evaluations: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    losses: tuple[float, ...] = ()
    note: str = ""


@dataclass
class History:
    """The reading before, and the losses, of each rank of one run."""

    run: str = ""
    before: dict[int, Reading] = field(default_factory=dict)
    losses: dict[int, deque[float]] = field(default_factory=dict)

    def rows(self, ranks: Sequence[int], now: Mapping[int, Reading]) -> list[Row]:
        """A row for each rank, also for those that do not answer."""
        run = next((one.run for one in now.values()), self.run)
        if run != self.run:
            self.run, self.before, self.losses = run, {}, {}
        made = [self._row(rank, now.get(rank)) for rank in ranks]
        self.before.update(now)
        return mark_slowest(made)

    def _row(self, rank: int, now: Reading | None) -> Row:
        if now is None:
            return Row(rank, note="silent")
        losses = self.losses.setdefault(rank, deque(maxlen=_HISTORY))
        loss = now.values.get("loss")
        if loss is not None:
            losses.append(loss)
        return make_row(self.before.get(rank), now, tuple(losses))


def make_row(before: Reading | None, now: Reading, losses: tuple[float, ...] = ()) -> Row:
    """A rank's row from two readings; rates need both, of the same process."""
    if before is not None and now.values.get("steps", 0.0) < before.values.get("steps", 0.0):
        before = None  # it was started again

    def grown(name: str) -> float:
        return 0.0 if before is None else now.values.get(name, 0.0) - before.values.get(name, 0.0)

    steps, seconds, waited = (
        grown(name) for name in ("step_seconds_count", "step_seconds_sum", "exposed_communication_seconds")
    )
    waited = min(waited, seconds)  # a round that an evaluation follows is waited for, and in no step's time
    stands = before is not None and grown("steps") == 0
    sent, everything = now.values.get("bytes_sent", 0.0), now.values.get("steps", 0.0)
    return Row(
        rank=now.rank,
        steps=int(everything),
        step_seconds=seconds / steps if steps > 0 else None,
        compute_seconds=(seconds - waited) / steps if steps > 0 else None,
        exposed=waited / seconds if seconds > 0 else None,
        sent_per_second=None if before is None else grown("bytes_sent") / (now.seconds - before.seconds),
        saved_bytes=now.values.get("bytes_uncompressed", 0.0) - sent,
        reduction=now.values.get("bytes_uncompressed", 0.0) / sent if sent else None,
        lssr=now.values.get("steps.local", 0.0) / everything if everything else None,
        evaluations=now.evaluations,
        loss=now.values.get("loss"),
        losses=losses,
        note="stands" if stands else "",
    )


def mark_slowest(rows: Sequence[Row]) -> list[Row]:
    """Mark the rank that computes longest, if it is clearly slower than the median."""
    times = {row.rank: row.compute_seconds for row in rows if row.compute_seconds is not None}
    if len(times) < 2:
        return list(rows)
    slowest = max(times, key=lambda rank: times[rank])
    if times[slowest] <= _SLOW * statistics.median_low(times.values()):
        return list(rows)
    return [replace(row, note="slowest") if row.rank == slowest else row for row in rows]


def sparkline(values: Sequence[float]) -> str:
    """The shape of some values.

    Example:
        >>> sparkline([1, 2, 4, 8])
        '▁▂▄█'
    """
    finite = [value for value in values if abs(value) < float("inf")]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    if span == float("inf"):  # no float holds it, so the shape cannot be drawn
        span = 0.0
    return "".join(
        _BARS[round((value - low) / span * (len(_BARS) - 1)) if span else 0] if value in finite else "!"
        for value in values
    )


def table(rows: Sequence[Row], measures: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Headings, and each row as text, without the losses; "-" where nothing is known.

    Args:
        rows: what is shown.
        measures: of evaluations, that have columns of their own.
    """
    headings = ["rank", "steps", "step", "exposed", "sent/s", "saved", "reduction", "LSSR"]
    return [*headings, *measures, "loss", ""], [_cells(row, measures) for row in rows]


def fitting(columns: Sequence[tuple[str, ...]], width: int) -> tuple[list[tuple[str, ...]], int]:
    """The columns for which there is room, none of them cut, and what is left of the width.

    Args:
        columns: each with its heading.
        width: of a line.

    Example:
        >>> fitting([("rank", "0"), ("steps", "3416"), ("saved", "24 MB"), ("loss", "0.5012")], 24)
        ([('rank', '0'), ('steps', '3416'), ('loss', '0.5012')], 3)
    """
    kept, left = list(columns), 0
    for name in (None, *_LEFT_OUT):
        kept = [column for column in kept if column[0] != name]
        left = width - sum(max(map(len, column)) + _GAP for column in kept)
        if left >= 0:
            break
    return kept, left


def _cells(row: Row, measures: Sequence[str]) -> list[str]:
    return [
        str(row.rank),
        str(row.steps) if row.note != "silent" else "-",
        "-" if row.step_seconds is None else duration(row.step_seconds),
        "-" if row.exposed is None else f"{row.exposed:.0%}",
        "-" if row.sent_per_second is None else data_size(row.sent_per_second),
        data_size(row.saved_bytes) if row.note != "silent" else "-",
        "-" if row.reduction is None else f"{number(row.reduction)}x",
        "-" if row.lssr is None else f"{row.lssr:.0%}",
        *(f"{row.evaluations[name]:#.4g}" if name in row.evaluations else "-" for name in measures),
        "-" if row.loss is None else f"{row.loss:#.4g}",
        row.note,
    ]

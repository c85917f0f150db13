"""Who takes part in the standard set, and what is tuned for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A contender of the standard set.

    Args:
        label: in results.
        contender: its name in the lab.
        settings: the contender's, for a period, in steps.
        periods: to try; of one, nothing is tuned.
        same_as: label of the entry with the same arithmetic, whose steps to quality hold for this one too.
    """

    label: str
    contender: str
    settings: Callable[[int], Settings] = lambda period: {}
    periods: tuple[int, ...] = (1,)
    same_as: str | None = None


def _algorithm(name: str, **parameters: Any) -> Callable[[int], Settings]:
    return lambda period: {"algorithm": {"name": name, **parameters}}


def _local(delay: Callable[[int], int], compressor: Any) -> Callable[[int], Settings]:
    return lambda period: {
        "algorithm": {
            "name": "local_sgd",
            "steps": period,
            "compressor": compressor,
            "delay": delay(period),
        }
    }


EIGHT_BITS = {"quantize": {"bits": 8}}
FOUR_BITS = {"quantize": {"bits": 4}}
FEW = {"error_feedback": {"chain": [{"top_k": {"density": 0.02}}, {"quantize": {"bits": 8}}]}}
PERIODS = (4, 8, 16, 32)

ENTRIES = {
    entry.label: entry
    for entry in (
        Entry(label="ddp", contender="ddp"),
        Entry(label="ddp_fp16", contender="ddp_fp16", same_as="ddp"),
        Entry(label="ddp_powersgd", contender="ddp_powersgd"),
        Entry(
            label="periodic_averaging",
            contender="periodic_averaging",
            settings=lambda period: {"steps": period},
            periods=PERIODS,
        ),
        Entry(
            label="post_local_sgd",
            contender="post_local_sgd",
            settings=lambda period: {"steps": period, "after_steps": 10},
            periods=PERIODS,
            same_as="periodic_averaging",
        ),
        Entry(
            label="accelerate_local_sgd",
            contender="accelerate_local_sgd",
            settings=lambda period: {"steps": period},
            periods=PERIODS,
            same_as="periodic_averaging",
        ),
        Entry(
            label="torchft_local_sgd",
            contender="torchft_local_sgd",
            settings=lambda period: {"steps": period},
            periods=PERIODS,
            same_as="periodic_averaging",
        ),
        Entry(
            label="torchft_diloco",
            contender="torchft_diloco",
            settings=lambda period: {"steps": period},
            periods=PERIODS,
        ),
        Entry(
            label="hivemind",
            contender="hivemind",
            settings=lambda period: {"steps": period},
            periods=PERIODS,
            same_as="periodic_averaging",
        ),
        Entry(label="relaxcomm bsp", contender="relaxcomm", settings=_algorithm("bsp"), same_as="ddp"),
        Entry(
            label="relaxcomm local_sgd 8 bits",
            contender="relaxcomm",
            settings=_local(lambda period: 0, EIGHT_BITS),
            periods=PERIODS,
        ),
        Entry(
            label="relaxcomm local_sgd 8 bits late",
            contender="relaxcomm",
            settings=_local(lambda period: max(1, period // 4), EIGHT_BITS),
            periods=PERIODS,
        ),
        Entry(
            label="relaxcomm local_sgd sparse late",
            contender="relaxcomm",
            settings=_local(lambda period: 1, FEW),
            periods=PERIODS[:2],
        ),
        Entry(label="relaxcomm selsync", contender="relaxcomm", settings=_algorithm("selsync")),
        Entry(
            label="relaxcomm selsync compressed late",
            contender="relaxcomm",
            settings=_algorithm("selsync", compressor=FEW, delay=1),
        ),
        Entry(label="relaxcomm auto", contender="relaxcomm", settings=_algorithm("auto")),
    )
}

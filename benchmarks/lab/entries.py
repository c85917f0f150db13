"""Who takes part in the standard set, and what is tuned for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
        late: steps after a multiple of the period in which workers have what was averaged, for a period.
        same_as: label of the entry with the same arithmetic, whose steps to quality hold for this one too.
        adapts: its steps to quality depend on the network, so they are not known from unshaped links.
    """

    label: str
    contender: str
    settings: Callable[[int], Settings] = lambda period: {}
    periods: tuple[int, ...] = (1,)
    late: Callable[[int], int] = lambda period: 0
    same_as: str | None = None
    adapts: bool = False


def _relaxcomm(name: str, **parameters: Any) -> Entry:
    algorithm = {"name": name, **parameters}
    return Entry(label="", contender="relaxcomm", settings=lambda period: {"algorithm": algorithm})


def _local(compressor: Any, late: Callable[[int], int], periods: tuple[int, ...]) -> Entry:
    return Entry(
        label="",
        contender="relaxcomm",
        settings=lambda period: {
            "algorithm": {
                "name": "local_sgd",
                "steps": period,
                "compressor": compressor,
                "delay": late(period),
            }
        },
        periods=periods,
        late=late,
    )


def _averaging(contender: str, **more: Any) -> Entry:
    return Entry(
        label="",
        contender=contender,
        settings=lambda period: {"steps": period},
        periods=PERIODS,
        same_as="periodic_averaging",
        **more,
    )


EIGHT_BITS = {"quantize": {"bits": 8}}
FEW = {"error_feedback": {"chain": [{"chunk_top_k": {"num_kept": 128}}, {"quantize": {"bits": 4}}]}}
PERIODS = (4, 8, 16, 32)
# The paper's smoothing, 0.16 of 16 workers; N / 100 would be 0.04 here, and then hardly a step counts as new.
_SELSYNC = {"smoothing": 0.16}

_ENTRIES = {
    "ddp": Entry(label="", contender="ddp"),
    "ddp_fp16": Entry(label="", contender="ddp_fp16", same_as="ddp"),
    "ddp_powersgd": Entry(label="", contender="ddp_powersgd", settings=lambda period: {"matrix_rank": 2}),
    # PyTorch's averagers count from 0, so they average in the step after a multiple of the period.
    "periodic_averaging": replace(_averaging("periodic_averaging", late=lambda period: 1), same_as=None),
    "post_local_sgd": replace(
        _averaging("post_local_sgd", late=lambda period: 1),
        settings=lambda period: {"steps": period, "after_steps": 10},
    ),
    "accelerate_local_sgd": _averaging("accelerate_local_sgd"),
    "torchft_local_sgd": _averaging("torchft_local_sgd"),
    "torchft_diloco": replace(_averaging("torchft_diloco"), same_as=None),
    "hivemind": _averaging("hivemind"),
    "relaxcomm bsp": replace(_relaxcomm("bsp"), same_as="ddp"),
    "relaxcomm local_sgd, late": _local(None, lambda period: max(1, period // 4), PERIODS),
    "relaxcomm local_sgd, 8 bits": _local(EIGHT_BITS, lambda period: 0, PERIODS),
    "relaxcomm local_sgd, 8 bits, late": _local(EIGHT_BITS, lambda period: max(1, period // 4), PERIODS),
    "relaxcomm local_sgd, sparse, late": _local(FEW, lambda period: 1, PERIODS[:2]),
    "relaxcomm selsync": _relaxcomm("selsync", **_SELSYNC),
    "relaxcomm selsync, sparse, late": _relaxcomm("selsync", compressor=FEW, delay=1, **_SELSYNC),
    "relaxcomm auto": replace(_relaxcomm("auto"), adapts=True),
}
ENTRIES = {label: replace(entry, label=label) for label, entry in _ENTRIES.items()}

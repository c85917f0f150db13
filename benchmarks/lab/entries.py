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
        late: steps after a multiple of the period in which workers have what was averaged, for a period.
        same_as: label of the entry with the same arithmetic, whose steps to quality hold for this one too.
        adapts: its steps to quality depend on the network, so they are not known from unshaped links.
        uneven: its steps do not all exchange, and not at regular intervals, so no step's time stands for all.
    """

    label: str
    contender: str
    settings: Callable[[int], Settings] = lambda period: {}
    periods: tuple[int, ...] = (1,)
    late: Callable[[int], int] = lambda period: 0
    same_as: str | None = None
    adapts: bool = False
    uneven: bool = False


EIGHT_BITS = {"quantize": {"bits": 8}}
FEW = {
    "error_feedback": {
        "chain": [{"chunk_top_k": {"num_kept": 1, "chunk_size": 16}}, {"quantize": {"bits": 4}}]
    }
}
TWO_BITS = {"error_feedback": {"quantize": {"bits": 2}}}
# In a run of ten or twenty averages DiLoCo's momentum of 0.9 has too long a memory.
_OUTER = {"lr": 0.7, "momentum": 0.6}
PERIODS = (4, 8, 16, 32)
_SELSYNC = {"name": "selsync"}


def _rival(name: str, *, label: str | None = None, **options: Any) -> Entry:
    return Entry(label=label or name, contender=name, **options)


def _averaging(name: str, *, same_as: str | None = "periodic_averaging", **more: Any) -> Entry:
    options = {"settings": lambda period: {"steps": period}, "periods": PERIODS, **more}
    return _rival(name, same_as=same_as, **options)


def _relaxcomm(label: str, algorithm: Settings, **options: Any) -> Entry:
    return Entry(
        label=f"relaxcomm {label}",
        contender="relaxcomm",
        settings=lambda period: {"algorithm": algorithm},
        **options,
    )


def _local(
    label: str,
    compressor: Any,
    late: Callable[[int], int],
    periods: tuple[int, ...] = PERIODS,
    same_as: str | None = None,
) -> Entry:
    def settings(period: int) -> Settings:
        own = {"steps": period, "compressor": compressor, "delay": late(period)}
        return {"algorithm": {"name": "local_sgd", **own}}

    return Entry(
        label=f"relaxcomm local_sgd, {label}",
        contender="relaxcomm",
        settings=settings,
        periods=periods,
        late=late,
        same_as=same_as,
    )


def _outer_momentum(period: int) -> Settings:
    return {"algorithm": {"name": "diloco", "steps": period, **_OUTER}}


def _outer_momentum_late(period: int) -> Settings:
    rule = {
        "trigger": {"every": {"steps": period}},
        "payload": "deltas",
        "compressor": EIGHT_BITS,
        "exchange": "scatter_gather",
        "delay": _eighth(period),
        "outer": {"nesterov": _OUTER},
    }
    return {"algorithm": {"rules": [rule]}}


def _two_bits_late(period: int) -> Settings:
    """Each worker averages a part for all, and codes the mean again; both keep what two bits leave out."""
    rule = {
        "trigger": {"every": {"steps": period}},
        "payload": "deltas",
        "compressor": TWO_BITS,
        "exchange": {"scatter_gather": {"server_feedback": True}},
        "delay": _quarter(period),
    }
    return {"algorithm": {"rules": [rule]}}


def _at_once(period: int) -> int:
    return 0


def _next_step(period: int) -> int:
    return 1


def _quarter(period: int) -> int:
    return max(1, period // 4)


def _eighth(period: int) -> int:
    return max(1, period // 8)


def _soon(period: int) -> int:
    """At or soon after the averages of what is chosen: every 8 steps, two late, or oftener and less late."""
    return 2


_ALL = (
    _rival("ddp"),
    _rival("ddp_fp16", same_as="ddp"),
    _rival("ddp_powersgd", settings=lambda period: {"matrix_rank": 2}),
    # PyTorch's averagers count from 0, so they average in the step after a multiple of the period.
    _averaging("periodic_averaging", late=_next_step, same_as=None),
    _averaging(
        "post_local_sgd", late=_next_step, settings=lambda period: {"steps": period, "after_steps": 10}
    ),
    _averaging("accelerate_local_sgd"),
    _averaging("torchft_local_sgd"),
    _averaging("torchft_diloco", same_as=None),
    _averaging(
        "torchft_diloco",
        label="torchft_diloco, momentum 0.6",
        settings=lambda period: {
            "steps": period,
            "outer_learning_rate": _OUTER["lr"],
            "outer_momentum": _OUTER["momentum"],
        },
        same_as="relaxcomm diloco",
    ),
    _averaging("hivemind"),
    _relaxcomm("bsp", {"name": "bsp"}, same_as="ddp"),
    _local("plain", None, _at_once, same_as="periodic_averaging"),
    _local("late", None, _quarter),
    _local("8 bits", EIGHT_BITS, _at_once),
    _local("8 bits, late", EIGHT_BITS, _quarter),
    _local("sparse, late", FEW, _quarter, (2, *PERIODS[:3])),
    Entry(label="relaxcomm diloco", contender="relaxcomm", settings=_outer_momentum, periods=PERIODS),
    Entry(
        label="relaxcomm diloco, 8 bits, late",
        contender="relaxcomm",
        settings=_outer_momentum_late,
        periods=PERIODS,
        late=_eighth,
    ),
    _relaxcomm("selsync", _SELSYNC, uneven=True),
    _relaxcomm(
        "selsync, sparse, late",
        # Smoothed less, it exchanges more often, which costs little when it is sparse; a window of 25 steps
        # would be a third of such a run.
        {
            "name": "selsync",
            "window_steps": 8,
            "smoothing": 0.7,
            "compressor": FEW,
            "delay": 1,
            "vote_delay": 1,
        },
        uneven=True,
    ),
    _relaxcomm("auto", {"name": "auto"}, late=_soon, adapts=True),
)
STANDARD = tuple(entry.label for entry in _ALL)
"""Labels of the standard set."""


def _by_period(name: str, **more: Any) -> Entry:
    def settings(period: int) -> Settings:
        return {"algorithm": {"name": name, "steps": period, **more}}

    return Entry(label=f"relaxcomm {name}", contender="relaxcomm", settings=settings, periods=PERIODS)


def _muloco(period: int) -> Settings:
    rule = {
        "trigger": {"every": {"steps": period}},
        "payload": "deltas",
        "compressor": TWO_BITS,
        "exchange": "all_gather",
        "outer": {"nesterov": _OUTER},
    }
    return {"algorithm": {"rules": [rule]}, "muon": True}


def _inner_muon(name: str, algorithm: Callable[[int], Settings], periods: tuple[int, ...]) -> Entry:
    """What Muon alone brings: the same optimizer as in muloco, around another algorithm."""
    return Entry(
        label=f"relaxcomm {name}, muon",
        contender="relaxcomm",
        settings=lambda period: {"algorithm": algorithm(period), "muon": True},
        periods=periods,
    )


# des_loc takes Adam, and those with muon the weights of linear layers: for charlm.
_NAMED = (
    *map(_by_period, ("des_loc", "noloco", "easgd")),
    _by_period("heloco", **_OUTER),
    Entry(label="relaxcomm muloco", contender="relaxcomm", settings=_muloco, periods=PERIODS),
    _inner_muon("bsp", lambda period: {"name": "bsp"}, (1,)),
    _inner_muon("local_sgd", lambda period: {"name": "local_sgd", "steps": period}, PERIODS),
)
_TWO_BITS_LATE = Entry(
    label="relaxcomm 2 bits on both ways, late",
    contender="relaxcomm",
    settings=_two_bits_late,
    periods=PERIODS,
    late=_quarter,
)
ENTRIES = {entry.label: entry for entry in (*_ALL, *_NAMED, _TWO_BITS_LATE)}
PAPERS = (
    *("relaxcomm bsp", "relaxcomm local_sgd, plain", "relaxcomm diloco"),
    *(entry.label for entry in _NAMED),
)
"""Labels of recent papers' algorithms, and of what they are held against."""
SETS = {"standard": STANDARD, "papers": PAPERS}

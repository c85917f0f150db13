"""What a cell shows, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.faults.cells import SIZE, Cell
from benchmarks.faults.costs import held_up_seconds, lost_work
from benchmarks.faults.launch import Found, Rank

WORSE = 0.08
"""By how much the accuracy may fall short of an undisturbed run's, where samples are lost."""
_LOST = ("CommunicationError", "RankLostError")
_ERRORS = ("NonFiniteError", *_LOST)
_NAMED = re.compile(r"(?:rank|worker) (\d+)")


@dataclass(frozen=True)
class Verdict:
    """A cell of the table.

    Args:
        cell: its name.
        outcome: "waits", "goes on", "ends", "refuses" or "hangs".
        wrong: in words, what is not as it must be; empty for a cell that passes.
        seconds: from the fault until training went on everywhere, or until everybody else had ended.
        steps_lost: by all ranks together: given up, or learned by the victim since it last exchanged.
        samples_lost: in them.
        accuracy: of the mean model in the end; None where there is none.
        undisturbed: the accuracy of the same run without a fault.
        messages: how each rank ended that did not end well, by rank.
    """

    cell: str
    outcome: str
    wrong: list[str]
    seconds: float | None = None
    steps_lost: int | None = None
    samples_lost: int | None = None
    accuracy: float | None = None
    undisturbed: float | None = None
    messages: dict[int, str] = field(default_factory=dict)


def judge(cell: Cell, found: Found, undisturbed: Found) -> Verdict:
    """Compare with what is right, and with a run without the fault."""
    outcome = _outcome(cell, found)
    others = [rank for index, rank in enumerate(found.ranks) if index != cell.fault.victim]
    done = [note for rank in found.ranks for note in rank.of("done")]
    lost = (
        lost_work(cell, found) if outcome == "goes on" else (None if outcome in ("ends", "hangs") else (0, 0))
    )
    wrong = [*_never(cell, found), *found.checkpoints]
    if outcome != cell.expected:
        wrong.append(f"expected that it {cell.expected}, but it {outcome}")
    else:
        wrong += _CHECKS[outcome](cell, found, undisturbed)
    return Verdict(
        cell.name,
        outcome,
        wrong,
        seconds=held_up_seconds(outcome, found, others),
        steps_lost=lost[0] if lost else None,
        samples_lost=lost[1] if lost else None,
        accuracy=done[0]["accuracy"] if done else None,
        undisturbed=undisturbed.ranks[0].of("done")[0]["accuracy"],
        messages={
            index: f"{note['type']}: {note['message']}"
            for index, rank in enumerate(found.ranks)
            for note in (*rank.of("error"), *rank.of("refused"))
        },
    )


def _outcome(cell: Cell, found: Found) -> str:
    ended = [bool(rank.of("done")) for rank in found.ranks]
    others = [end for index, end in enumerate(ended) if index != cell.fault.victim]
    if any(rank.exit_code is None for rank in found.ranks):
        return "hangs"
    if all(ended):
        return "refuses" if any(rank.of("refused") for rank in found.ranks) else "waits"
    if all(others):
        return "goes on"
    return "comes apart" if any(ended) else "ends"


def _never(cell: Cell, found: Found) -> Iterator[str]:
    """What must not be seen anywhere."""
    for index, rank in enumerate(found.ranks):
        if "terminate called" in rank.errors or "Fatal Python error" in rank.errors:
            yield f"rank {index} was aborted: {rank.errors[-300:]}"
        if index != cell.fault.victim and (rank.exit_code or 0) < 0:
            yield f"rank {index} ended by signal {-(rank.exit_code or 0)}"
        for note in rank.of("error"):
            own = index == cell.fault.victim and note["type"] == "KeyError"
            if not own and note["type"] not in _ERRORS:
                yield f"rank {index} ended with {note['type']}: {note['message'][:300]}"


def _check_same(cell: Cell, found: Found, undisturbed: Found) -> Iterator[str]:
    """All ranks end with one model: the undisturbed run's, where that does not depend on speed."""
    yield from _check_equal(found.ranks, SIZE)
    end, wanted = found.ranks[0].of("done")[0], undisturbed.ranks[0].of("done")[0]
    if cell.exact and end["sum"] != wanted["sum"]:
        yield f"the model differs from the undisturbed run's: {end['sum']!r} and {wanted['sum']!r}"
    if end["accuracy"] < wanted["accuracy"] - WORSE:
        yield f"accuracy {end['accuracy']:.3f}, undisturbed {wanted['accuracy']:.3f}"


def _check_survivors(cell: Cell, found: Found, undisturbed: Found) -> Iterator[str]:
    """Those who are left end with one model that is nearly as good, and name the one that is lost."""
    victim = cell.fault.victim
    left = [rank for index, rank in enumerate(found.ranks) if index != victim]
    yield from _check_equal(left, SIZE - 1)
    accuracy, wanted = (one.of("done")[0]["accuracy"] for one in (left[0], undisturbed.ranks[1]))
    if accuracy < wanted - WORSE:
        yield f"accuracy {accuracy:.3f}, undisturbed {wanted:.3f}"
    said = [line for rank in left for line in rank.errors.splitlines() if " go on from step " in line]
    if len(said) != 1 or set(_NAMED.findall(said[0])) != {str(victim)}:
        yield f"one line must name rank {victim} and nobody else, got {said}"
    if "SIGSTOP" in cell.fault.name or "link" in cell.fault.name:
        yield from _check_kind(victim, found.ranks[victim], _LOST)
    if cell.fault.name == "NaN":
        yield from _check_kind(victim, found.ranks[victim], ("NonFiniteError",))


def _check_ended(cell: Cell, found: Found, undisturbed: Found) -> Iterator[str]:
    """Everybody else ends with an error that names the victim."""
    victim = cell.fault.victim
    if cell.fault.name == "NaN":
        yield from _check_kind(victim, found.ranks[victim], ("NonFiniteError",))
    for index, rank in enumerate(found.ranks):
        if index != victim:
            yield from _check_kind(index, rank, _ERRORS if cell.fault.name == "NaN" else _LOST)
            if cell.names_victim:
                yield from _check_names(index, rank, victim)


def _check_refused(cell: Cell, found: Found, undisturbed: Found) -> Iterator[str]:
    """All ranks say why, and the run goes on as if nothing had been."""
    (named,) = (note["named"] for rank in found.ranks for note in rank.of("fault") if "named" in note)
    for index, rank in enumerate(found.ranks):
        said = [note["message"] for note in rank.of("refused")]
        if len(said) != 1 or named not in said[0]:
            yield f"rank {index} must refuse once, naming {named}, got {said}"
    yield from _check_same(cell, found, undisturbed)


_CHECKS = {
    "waits": _check_same,
    "goes on": _check_survivors,
    "ends": _check_ended,
    "refuses": _check_refused,
}


def _check_equal(ranks: Sequence[Rank], size: int) -> Iterator[str]:
    ends = [rank.of("done")[0] for rank in ranks]
    if len({end["sum"] for end in ends}) > 1:
        yield f"silent divergence: models differ in the end: {[end['sum'] for end in ends]}"
    if {end["ranks"] for end in ends} != {size}:
        yield f"{[end['ranks'] for end in ends]} ranks in the end instead of {size}"


def _check_kind(index: int, rank: Rank, kinds: Sequence[str]) -> Iterator[str]:
    for note in rank.of("error"):
        if note["type"] not in kinds:
            yield f"rank {index} ended with {note['type']} instead of {kinds[0]}: {note['message'][:300]}"


def _check_names(index: int, rank: Rank, victim: int) -> Iterator[str]:
    for note in rank.of("error"):
        own = f"rank {index} at "
        after = note["message"].removeprefix(own)
        if str(victim) not in _NAMED.findall(after):
            yield f"rank {index} does not name rank {victim}: {note['message'][:300]}"

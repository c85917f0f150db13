"""A claim of a paper, what it is tried with, and when the trial bears it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.settings import SETTINGS
from benchmarks.claims.training import Trial
from benchmarks.claims.tried import Tried

BSP, NEVER = "bsp", "never"
CLEAR = 3  # margins by which never exchanging has to be worse for a setting to tell anything

Outcome = Mapping[str, Tried]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, and how it is tried.

    Args:
        name: of the claim.
        paper: who says it.
        says: what, in one sentence.
        settings: names of those in which it is tried.
        rows: the trials, by what the table calls them.
        holds: whether the outcome bears it out, given the setting's margin.
    """

    name: str
    paper: str
    says: str
    settings: tuple[str, ...]
    rows: Mapping[str, Trial]
    holds: Callable[[Outcome, float], bool]

    def trials(self) -> dict[str, Trial]:
        """All rows, with `bsp` and never exchanging beside them."""
        first = next(iter(self.rows.values()))
        beside = {"optimizer": first.optimizer, "uneven": first.uneven}
        return {
            BSP: Trial(algorithm="bsp", **beside),
            NEVER: Trial(algorithm={"name": "local_sgd", "steps": 10**9}, **beside),
            **self.rows,
        }

    def verdict(self, setting: str, outcome: Outcome) -> str:
        """In a word: whether it holds, does not, or cannot be told there."""
        margin = SETTINGS[setting].margin
        if outcome[BSP]["quality"] - outcome[NEVER]["quality"] < CLEAR * margin:
            return "cannot tell: never exchanging is as good"
        return "holds" if self.holds(outcome, margin) else "does not hold"


def named(name: str, **arguments: Any) -> dict[str, Any]:
    """An algorithm as YAML has it."""
    return {"name": name, **arguments}


def at_least(better: str, other: str) -> Callable[[Outcome, float], bool]:
    """One row's quality is no worse than the other's, but for noise."""
    return lambda found, margin: found[better]["quality"] >= found[other]["quality"] - margin


def above(better: str, other: str) -> Callable[[Outcome, float], bool]:
    """One row's quality is better than the other's by more than noise."""
    return lambda found, margin: found[better]["quality"] > found[other]["quality"] + margin

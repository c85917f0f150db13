"""Where ranks stand when a generation of them begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from relaxcomm.engine.membership import bucket_parts
from relaxcomm.errors import CommunicationError
from relaxcomm.monitoring.exporter import Target
from relaxcomm.network.byte_counters import RECOVERY
from relaxcomm.step.world import World

Loaded: TypeAlias = "Sequence[Mapping[str, Any]]"
"""How far data sets were read."""


@dataclass(frozen=True)
class Standing:
    """Where a rank stands when a generation begins.

    Args:
        next_step: the clock when its step is over; -1 for one that joins.
        progress: how far it has come, to compare with others: `next_step`, or rounds that are over.
        events: how many it has ended of what all do together.
        shared: a digest of what should be the same on all ranks.
        is_whole: whether it has all results that were on their way.
        loaders: how far it has read data sets.
        read_until: the clock there, which a rank that was behind before has yet to come to.
        rests: what it has left to send of the mean of its part.
        algorithm: that it runs.
        target: where others find its metrics, or None.
        evaluated: names of the parameters that it holds in the place of those that are trained.
        are_final: whether these are what the run or its algorithm ends with, and stay.
        ends_as_loaded: whether it ends with what a load has left as it was, if others end with theirs.
        frozen: checksums of what it does not train, by name, if it joins.
    """

    next_step: int = -1
    progress: int = -1
    events: int = -1
    shared: str = ""
    is_whole: bool = True
    loaders: Loaded = ()
    read_until: int = -1
    rests: bucket_parts.Rests = field(default_factory=dict)
    algorithm: str = ""
    target: Target | None = None
    evaluated: Sequence[str] = ()
    are_final: bool = False
    ends_as_loaded: bool = False
    frozen: Mapping[str, int] = field(default_factory=dict)

    @property
    def stays(self) -> bool:
        """Whether it was there before."""
        return self.next_step >= 0


@dataclass(frozen=True)
class Standings:
    """Where all ranks stand."""

    by_rank: Sequence[Standing]

    @property
    def joined(self) -> list[int]:
        """The ranks that were not there before."""
        return [rank for rank, one in enumerate(self.by_rank) if not one.stays]

    @property
    def frozen(self) -> list[Mapping[str, int]]:
        """Of each of them, see `Standing`."""
        return [one.frozen for one in self.by_rank if not one.stays]

    @property
    def farthest(self) -> int:
        """The rank that has come farthest."""
        return max(range(len(self.by_rank)), key=lambda rank: self.by_rank[rank].progress)

    @classmethod
    def gather(cls, world: World, mine: Standing) -> Standings:
        """Every rank gives its own.

        Raises: CommunicationError, on all ranks, where a switch has ended on some of them alone.
        """
        made = cls(world.gather(mine, RECOVERY))
        algorithms = sorted({one.algorithm for one in made.by_rank if one.stays})
        if len(algorithms) > 1:
            raise CommunicationError(
                f"ranks were lost while the others switched, which some have done and others have not: "
                f"{' and '.join(algorithms)}; start the run again from a checkpoint"
            )
        return made

    @property
    def targets(self) -> list[Target | None]:
        """Where the metrics of each are found."""
        return [one.target for one in self.by_rank]

    @property
    def next_step(self) -> int:
        """The clock when the step is over that nobody makes again."""
        return self.by_rank[self.farthest].next_step

    @property
    def last_step(self) -> int:
        """The farthest clock."""
        return max(one.next_step for one in self.by_rank)

    @property
    def read_farthest(self) -> Standing:
        """The standing of the rank that has read the farthest."""
        return max(self.by_rank, key=lambda one: one.read_until)

    @property
    def events(self) -> int:
        """How many are over of what all do together."""
        return max(one.events for one in self.by_rank)

    @property
    def are_whole(self) -> bool:
        """Whether no rank has lost what was on its way."""
        return all(one.is_whole for one in self.by_rank)

    @property
    def evaluated(self) -> str:
        """Which ranks hold other parameters than those that are trained, and one's name; empty if none do, or
        all end with them."""
        if all(one.are_final or one.ends_as_loaded for one in self.by_rank):
            return ""
        ranks = [rank for rank, one in enumerate(self.by_rank) if one.evaluated]
        return f"{self.by_rank[ranks[0]].evaluated[0]} on ranks {ranks}" if ranks else ""

    @property
    def end_as_loaded(self) -> bool:
        """Whether some end with what they have loaded in the place of what is trained."""
        return any(one.are_final and one.evaluated for one in self.by_rank)

    @property
    def differ(self) -> bool:
        """Whether those who stay have not all applied the same."""
        return len({(one.progress, one.shared) for one in self.by_rank if one.stays}) > 1

    def is_behind(self, mine: Standing) -> bool:
        """Whether others have come farther."""
        return mine.progress < self.by_rank[self.farthest].progress

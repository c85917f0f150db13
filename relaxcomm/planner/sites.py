"""Sites of workers, with slow links between them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from relaxcomm.network.link import Link
from relaxcomm.planner.links import Links, Way
from relaxcomm.planner.pairs import AllPairs, Pair, ring_pairs, shares


@dataclass(frozen=True)
class SiteLinks(Links):
    """Workers at sites, which have a link each to all other sites.

    Workers 0 to n - 1 are at the first site, and so on; of sizes that differ, by one, the larger come first.
    What goes to another site passes the worker's link, its site's, and the other's.

    Args:
        workers: their number.
        sites: their number, at most that of the workers.
        inside: each worker's link.
        between: each site's link.

    Example:
        >>> links = SiteLinks(4, 2, Link(bytes_per_second=1e9), Link(0.01, 1e7))
        >>> links.way(None).seconds_per_byte, links.way([(0, 2), (1, 3)]).seconds_per_byte
        (1e-07, 2e-07)
    """

    workers: int
    sites: int
    inside: Link
    between: Link
    _known: dict[int, tuple[Sequence[Pair], tuple[float, float]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    uniform = False

    @property
    def groups(self) -> list[list[int]]:
        """The workers of each site."""
        size, larger = divmod(self.workers, self.sites)
        starts = [site * size + min(site, larger) for site in range(self.sites + 1)]
        return [list(range(*pair)) for pair in itertools.pairwise(starts)]

    @property
    def slowest(self) -> Link:
        return min(self.inside, self.between, key=lambda link: link.bytes_per_second)

    def way(self, pairs: Sequence[Pair] | None) -> Way:
        into, across = self._loads(pairs)
        inside, between = into / self.inside.bytes_per_second, across / self.between.bytes_per_second
        latency = self.inside.latency_seconds + (self.between.latency_seconds if across else 0.0)
        return Way(max(inside, between), latency, across if between > inside else into)

    def _loads(self, pairs: Sequence[Pair] | None) -> tuple[float, float]:
        """Through the busiest worker's link, and the busiest site's, of a byte that each worker sends."""
        pairs = ring_pairs(self.workers) if pairs is None else pairs
        if isinstance(pairs, AllPairs):
            others = [len(group) * (self.workers - len(group)) / (self.workers - 1) for group in self.groups]
            return 1.0, max(others)
        known = self._known.get(id(pairs))
        if known is None or known[0] is not pairs:
            known = self._known[id(pairs)] = pairs, self._counted(pairs)
        return known[1]

    def _counted(self, pairs: Sequence[Pair]) -> tuple[float, float]:
        """The same, pair by pair."""
        site_of = [site for site, group in enumerate(self.groups) for _ in group]
        out: dict[int, float] = defaultdict(float)
        into: dict[int, float] = defaultdict(float)
        across: dict[tuple[str, int], float] = defaultdict(float)
        for (one, other), share in zip(pairs, shares(pairs), strict=True):
            out[one] += share
            into[other] += share
            if site_of[one] != site_of[other]:
                across["out", site_of[one]] += share
                across["in", site_of[other]] += share
        return max([*out.values(), *into.values()], default=0.0), max(across.values(), default=0.0)

    def times(self, factor: float) -> SiteLinks:
        inside, between = (
            replace(link, bytes_per_second=link.bytes_per_second * factor)
            for link in (self.inside, self.between)
        )
        return replace(self, inside=inside, between=between)

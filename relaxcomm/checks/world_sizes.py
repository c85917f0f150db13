"""Numbers of workers that are tried: few and small ones, unless a topology takes others alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from relaxcomm.composition.algorithm import Algorithm

LARGEST = 64  # more ranks would take minutes in one process
RANKS, OF = (1, 2, 3, 7), 8  # that do as rank 0 does where all have to do alike
_DEFAULT_SIZES = range(3, 11)  # of two workers every graph is balanced


def fitting(check: Callable[[int], None]) -> Iterator[int]:
    """Numbers of workers, from three on, that a check does not refuse.

    Whatever else it raises comes again where the topology is used.
    """
    for number in range(_DEFAULT_SIZES[0], LARGEST + 1):
        with suppress(Exception):
            check(number)
            yield number


def sizes_for(algorithm: Algorithm) -> list[int]:
    """Numbers of workers, smallest first, that an algorithm may be tried with: its own topologies decide."""

    def check(number: int) -> None:
        for rule in algorithm.rules:
            override = rule.exchange.topology_override()
            if override is not None:
                rule.exchange.check_graph(override, number)

    return list(islice(fitting(check), len(_DEFAULT_SIZES))) or list(_DEFAULT_SIZES)

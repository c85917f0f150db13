"""Checks of topologies: each declared fact against their graphs, for several numbers of workers."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import permutations
from typing import Any

from relaxcomm.checks.conduct import checks_of
from relaxcomm.checks.finding import Broken, expect, told
from relaxcomm.checks.world_sizes import LARGEST
from relaxcomm.errors import TopologyError
from relaxcomm.fields.validation import shown
from relaxcomm.topology import Topology

_USUAL_SIZES = (*range(1, 11), 12, 16, 32)
_OTHER_SIZES = [number for number in range(1, LARGEST + 1) if number not in _USUAL_SIZES]
_STEPS = 16  # at most; graphs that are drawn may come again after many more
_LONG = 4096  # steps, at most, in which one that declares to change is waited for


def _trials(topology: Topology) -> list[int]:
    """Numbers of workers for which it has a graph: usual ones, or if it takes none of these, all others.

    A graph that is the same for any number has its own.
    """
    found: list[int] = []
    refused: list[TopologyError] = []
    for numbers in (_USUAL_SIZES, _OTHER_SIZES):
        for number in numbers:
            try:
                found.append(len(topology.graph(number)))
            except TopologyError as error:
                refused.append(error)
            except Exception as error:  # a plug-in may raise anything
                remedy = "raise TopologyError for a number that it cannot have"
                raise Broken(f"for {number} workers raises {told(error)}; {remedy}") from error
        if max(found, default=1) > 1:
            return list(dict.fromkeys(found))
    raise Broken(f"no number of workers from 2 to {LARGEST} can be had: {refused[-1]}")


def links_are_right(topology: Topology) -> None:
    """Some number of workers would come to agree over it, unless it refuses all that were tried."""
    _methods_take_what_they_are_given(topology)
    refused: list[TopologyError] = []
    for number in dict.fromkeys((*_trials(topology), *_OTHER_SIZES)):
        if number == 1:
            continue
        try:
            topology.check(number, balanced=False)
        except TopologyError as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def _methods_take_what_they_are_given(topology: Topology) -> None:
    """One more argument that is required, such as a rank, would be taken for the number of workers."""
    for name in ("graph", "weights"):
        taken = inspect.signature(getattr(topology, name))
        for given in (["world_size"], ["world_size", "step"]):
            try:
                taken.bind(*given)
            except TypeError:
                called = f"is called as {name}({', '.join(given)}); define {name}(self, world_size, step=0)"
                raise Broken(f"defines {name}{taken}, and {called}") from None


def graphs_come_again(topology: Topology) -> None:
    """Each rank makes all graphs for itself, so nothing is drawn that the arguments do not decide."""
    made: Any = topology
    another: Topology = replace(made)
    for number in _trials(topology):
        for step in _steps(topology, number):
            once, again = (_made(one, number, step) for one in (topology, another))
            expect(once == again, f"makes another graph of {number} workers when asked again for step {step}")


def period_is_declared(topology: Topology) -> None:
    """After a period come the same graphs and weights."""
    for number in _trials(topology):
        period = topology.period_steps(number)
        for step in _steps(topology, number):
            same = _made(topology, number, step) == _made(topology, number, step + period)
            declares = f"declares period_steps of {period} for {number} workers"
            expect(same, f"{declares}, but the graph of step {step + period} is not that of step {step}")


def change_is_declared(topology: Topology) -> None:
    """Graphs and weights change from step to step only if that is declared."""
    found, told = False, ""
    for number in _trials(topology):
        first = _made(topology, number, 0)
        steps = _steps(topology, number, _LONG) if topology.changes else range(_STEPS)
        changing = next((step for step in steps if _made(topology, number, step) != first), None)
        if changing is not None:
            found, told = True, f", as in step {changing} for {number} workers"
            break
    expect(found == topology.changes, f"declares changes={topology.changes}, but it is {found}{told}")


def pairs_and_groups_are_declared(topology: Topology) -> None:
    """All ranks are linked, or are divided into groups that hold each once, as declared."""
    for number in _trials(topology):
        for step in _steps(topology, number) if topology.all_pairs else ():
            graph, pairs = topology.graph(number, step), permutations(range(number), 2)
            apart = [pair for pair in pairs if not graph.has_edge(*pair)]
            declares = f"declares all_pairs=True, but in step {step}"
            expect(not apart, f"{declares} {shown(apart)} of {number} workers are not linked")
        try:
            groups = topology.groups(number)
        except TopologyError:  # a graph of as many workers, which cannot be divided
            continue
        topology.check_groups(number)
        expect(
            topology.has_groups or len(groups) == 1,
            f"declares has_groups=False, but divides {number} workers into {shown(groups)}",
        )


def _steps(topology: Topology, number: int, most: int = _STEPS) -> range:
    return range(min(topology.period_steps(number), most))


def _made(topology: Topology, number: int, step: int) -> tuple[Any, ...]:
    """Graph and weights of a step, to be compared."""
    graph, rows = topology.graph(number, step), topology.weights(number, step)
    linked = {one: set(others) for one, others in graph.adjacency()}  # attributes may be anything
    return graph.is_directed(), linked, {rank: dict(row) for rank, row in rows.items()}


topology_checks = checks_of(
    {
        "links": links_are_right,
        "repeats": graphs_come_again,
        "period": period_is_declared,
        "changes": change_is_declared,
        "facts": pairs_and_groups_are_declared,
    }
)
"""The checks of a topology, by name."""

"""A Plan replayed in virtual time: nobody trains, and no tensor of the model is made."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.planner.links import Links
from relaxcomm.planner.priced_plan import PricedPlan
from relaxcomm.planner.replayed_run import Replayed, ReplayedRun
from relaxcomm.planner.scenario import Scenario
from relaxcomm.tensors.items import Item


def shapes_only(shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32) -> list[Item]:
    """Parameters of which only the shapes are there, whatever their size.

    Args:
        shapes: in the model's order.
        dtype: of all of them.

    Example:
        >>> sum(item.tensor.numel() for item in shapes_only([(100_000, 1_000_000)]))
        100000000000
    """
    made = (torch.empty(tuple(shape), dtype=dtype, device="meta") for shape in shapes)
    return [Item(str(index), tensor) for index, tensor in enumerate(made)]


class Replay:
    """An algorithm on a model in a scenario, to be run as often as wanted.

    Args:
        algorithm: whose rules; one that a planner chooses has been chosen.
        items: the trainable parameters; shapes are enough.
        scenario: on what.

    Raises: CompositionError for fewer parameters than fragments; TopologyError for a graph that the algorithm
        cannot use, or that links do not reach over.

    Example:
        >>> from relaxcomm import Link
        >>> from relaxcomm.planner.links import OwnLinks
        >>> from relaxcomm.planner.scenario import Scenario, StepTimes
        >>> from relaxcomm_algorithms.local_sgd import local_sgd
        >>> scenario = Scenario(4, StepTimes(0.1), OwnLinks(Link(bytes_per_second=12.5e6)))
        >>> replay = Replay(local_sgd(steps=8), shapes_only([(1000, 1000)]), scenario)
        >>> round(replay.run().step_seconds, 3)  # 6 MB every 8 steps take 0.48 s
        0.16
    """

    def __init__(self, algorithm: Algorithm, items: Sequence[Item], scenario: Scenario) -> None:
        self.plan = PricedPlan(algorithm, items, scenario)
        self.scenario = scenario

    def run(
        self,
        steps: int | None = None,
        *,
        first: int | None = None,
        links: Links | None = None,
        without: Set[int] = frozenset(),
    ) -> Replayed:
        """Replay steps.

        Args:
            steps: how many count; some whole cycles unless given.
            first: the first that counts, 0 for a run from its beginning; unless given `settled_from`, and
                nothing is replayed from before the last of the rules begins or ends.
            links: other ones than the scenario's.
            without: rules, by index, that never exchange.
        """
        times = self.plan.timetable
        begin, first = (times.last_change, times.settled_from) if first is None else (0, first)
        links = links or self.scenario.links
        steps = steps or times.cycle * math.ceil(self.plan.least_steps(links) / times.cycle)
        self.plan.draw(first + steps - begin)
        return ReplayedRun(self.plan, links, begin, without).steps(first, steps)

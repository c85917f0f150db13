"""What an algorithm will cost, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.network.link import Link
from relaxcomm.planner.failures import Failures
from relaxcomm.planner.footprint import Footprint, footprints, least_and_most
from relaxcomm.planner.link_probes import probe_sizes
from relaxcomm.planner.links import Links, OwnLinks, infinitely_fast
from relaxcomm.planner.remarks import remarks_on
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.replayed_run import Replayed
from relaxcomm.planner.scenario import Scenario
from relaxcomm.planner.two_levels import in_yaml
from relaxcomm.roles.planner import Measured
from relaxcomm.roles.returned import chosen
from relaxcomm.system.quantities import data_size
from relaxcomm.tensors.items import Item

UTILISATIONS = (0.5, 0.9, 0.99)
_SLOWEST, _FASTEST = 1e3, 1e14  # bytes a second, between which a bandwidth is looked for
_HALVINGS = 16


@dataclass(frozen=True)
class Forecast:
    """What an algorithm will cost.

    Args:
        name: of the algorithm.
        workers: their number.
        replayed: what a step is like.
        memory_bytes: a parameter, above the model, `.grad` and the optimizer, on the rank that needs most.
        bandwidths: bytes a second of the slowest link, with all others in proportion, for each of some
            utilisations; None where no bandwidth is enough.
        remarks: in words: where compression loses, and what was assumed.
        useful_share: of the samples of a run without failures, those that count; None without failures.
    """

    name: str
    workers: int
    replayed: Replayed
    memory_bytes: float
    bandwidths: Mapping[float, float | None]
    remarks: tuple[str, ...]
    useful_share: float | None = None

    @property
    def goodput(self) -> float | None:
        """The share of all workers' time in which they compute what counts; None without failures."""
        return None if self.useful_share is None else self.useful_share * self.replayed.utilisation


def forecast(
    algorithm: Algorithm,
    items: Sequence[Item],
    scenario: Scenario,
    *,
    utilisations: Sequence[float] = UTILISATIONS,
    failures: Failures | None = None,
) -> Forecast:
    """What an algorithm will cost.

    Args:
        algorithm: as configured.
        items: the trainable parameters; shapes are enough.
        scenario: on what.
        utilisations: for which a bandwidth is looked for.
        failures: of workers, or None.

    Raises: CompositionError, TopologyError where it cannot run so.

    Example:
        >>> from relaxcomm import Link
        >>> from relaxcomm.planner.links import OwnLinks
        >>> from relaxcomm.planner.replay import shapes_only
        >>> from relaxcomm.planner.scenario import StepTimes
        >>> from relaxcomm_algorithms.diloco import diloco
        >>> scenario = Scenario(2, StepTimes(0.8), OwnLinks(Link(bytes_per_second=1e9)))
        >>> model = shapes_only([(100_000, 100_000)])  # ten billion parameters
        >>> found = forecast(diloco(steps=100), model, scenario)
        >>> round(found.replayed.utilisation, 2), round(8e-9 * found.bandwidths[0.5], 1)
        (0.67, 4.0)
    """
    chosen, remarks = _chosen(algorithm, items, scenario)
    replay = Replay(chosen, items, scenario)
    replayed = replay.run()
    useful = None if failures is None else failures.useful(replay, replayed.step_seconds, items)
    remarks += remarks_on(replay, items, math.inf if useful is None else useful.died_out_seconds)
    needed = footprints(chosen, items, scenario.workers, scenario.topology, scenario.bucket_bytes)
    remarks += _memory_of_some(needed, items, scenario.workers)
    return Forecast(
        name=algorithm.name,
        workers=scenario.workers,
        replayed=replayed,
        memory_bytes=max(one.whole for one in needed.values()),
        bandwidths={one: _bandwidth_for(one, replay) for one in utilisations},
        remarks=tuple(dict.fromkeys(remarks)),
        useful_share=None if useful is None else useful.share,
    )


def _memory_of_some(needed: Mapping[int, Footprint], items: Sequence[Item], workers: int) -> list[str]:
    """Whose memory is told, where not all ranks need as much."""
    apart = least_and_most(needed)
    if apart is None:
        return []
    least, most = apart
    lower = data_size(needed[least].whole * sum(item.parameter.numel() for item in items))
    counted = "all" if len(needed) == workers else f"the {len(needed)} ranks for which it was counted"
    return [f"memory is what rank {most} needs, the most of {counted}; rank {least} needs least, {lower}"]


def _chosen(algorithm: Algorithm, items: Sequence[Item], scenario: Scenario) -> tuple[Algorithm, list[str]]:
    """The algorithm that a planner goes on with."""
    if algorithm.planner is None:
        return algorithm, []
    numel = sum(item.parameter.numel() for item in items)
    nbytes = sum(item.parameter.numel() * item.tensor.element_size() for item in items)
    way = scenario.links.way(None)
    alone = scenario.workers == 1 or not way.seconds_per_byte
    measured = Measured(
        step_seconds=scenario.step_times.seconds,
        jitter_seconds=scenario.step_times.jitter_seconds,
        num_parameters=numel,
        parameter_bytes=nbytes,
        world_size=scenario.workers,
        latency_seconds=2 * (scenario.workers - 1) * way.latency_seconds,  # an all-reduce is a ring
        bytes_per_second=math.inf if alone else 1 / way.seconds_per_byte,
        num_buckets=math.ceil(nbytes / scenario.bucket_bytes),
        crowding=scenario.crowding,
    )
    choice, _ = chosen(algorithm.planner.choose(measured), algorithm.planner)
    made = parse_algorithm(choice)
    said = [f"{algorithm.name} would choose {made.name}: {in_yaml(made.rules)}"]
    if scenario.workers > 1:
        sent = data_size(2 * (1 - 1 / scenario.workers) * sum(probe_sizes(nbytes)))
        said.append(f"measuring the link first, for which each worker sends up to {sent}, is not counted")
    return made, said


def _bandwidth_for(utilisation: float, replay: Replay) -> float | None:
    """The least that is enough; what is found is within a thousandth."""
    links: Links = replay.scenario.links
    if infinitely_fast(links):
        links = OwnLinks(Link(links.slowest.latency_seconds, 1e9))
    rate = links.slowest.bytes_per_second

    def enough(bandwidth: float) -> bool:
        return replay.run(links=links.times(bandwidth / rate)).utilisation >= utilisation

    if not enough(_FASTEST):
        return None
    low, high = math.log(_SLOWEST), math.log(_FASTEST)
    if enough(_SLOWEST):
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)

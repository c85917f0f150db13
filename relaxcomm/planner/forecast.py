"""What an algorithm will cost, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.exchange_cost import exchange_cost
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.network.link import Link
from relaxcomm.network.transport import Membership
from relaxcomm.planner.connections import too_many
from relaxcomm.planner.failures import Failures
from relaxcomm.planner.footprint import footprint
from relaxcomm.planner.links import infinitely_fast
from relaxcomm.planner.replay import Replay, Replayed
from relaxcomm.planner.scenario import Scenario
from relaxcomm.planner.two_levels import hierarchical_instead
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.roles.planner import Measured
from relaxcomm.system.quantities import bandwidth, duration
from relaxcomm.tensors.buckets import Item
from relaxcomm.tensors.layout import Layout

UTILISATIONS = (0.5, 0.9, 0.99)
_SLOWEST, _FASTEST = 1e3, 1e14  # bytes a second, between which a bandwidth is looked for
_HALVINGS = 16
_PROBES, _SIDE = 16, 32  # of the model whose memory is counted


@dataclass(frozen=True)
class Forecast:
    """What an algorithm will cost.

    Args:
        name: of the algorithm.
        workers: their number.
        replayed: what a step is like.
        memory_bytes: a parameter and worker, above the model, `.grad` and the optimizer.
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
    adaptive_optimizer: bool = False,
    failures: Failures | None = None,
) -> Forecast:
    """What an algorithm will cost.

    Args:
        algorithm: as configured.
        items: the trainable parameters; shapes are enough.
        scenario: on what.
        utilisations: for which a bandwidth is looked for.
        adaptive_optimizer: for algorithms that a planner chooses, see `Measured`.
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
    chosen, remarks = _chosen(algorithm, items, scenario, adaptive_optimizer)
    replay = Replay(chosen, items, scenario)
    replayed = replay.run()
    remarks += _assumed(replay.plan.algorithm, scenario)
    remarks += [text for task in _first_tasks(replay) if (text := _where_it_loses(*task, scenario))]
    better = hierarchical_instead(replay.plan.algorithm, items, replay)
    remarks += [*([better] if better else []), *too_many(replay.plan)]
    useful = None if failures is None else failures.useful(replay, replayed.step_seconds, items)
    if useful is not None and useful.died_out_seconds < math.inf:
        remarks.append(
            f"all workers are dead at once about every {duration(useful.died_out_seconds)}, and begin anew "
            "then, which is not counted: write checkpoint: {path: saved, every_seconds: 600}"
        )
    return Forecast(
        name=algorithm.name,
        workers=scenario.workers,
        replayed=replayed,
        memory_bytes=_memory(chosen, items, scenario),
        bandwidths={one: _bandwidth_for(one, replay) for one in utilisations},
        remarks=tuple(dict.fromkeys(remarks)),
        useful_share=None if useful is None else useful.share,
    )


def _chosen(
    algorithm: Algorithm, items: Sequence[Item], scenario: Scenario, adaptive_optimizer: bool
) -> tuple[Algorithm, list[str]]:
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
        adaptive_optimizer=adaptive_optimizer,
        num_buckets=math.ceil(nbytes / scenario.bucket_bytes),
        crowding=scenario.crowding,
    )
    choice, _ = algorithm.planner.choose(measured)
    made = parse_algorithm(choice)
    rules = "; ".join(map(repr, made.rules))
    return made, [f"{algorithm.name} would choose {made.name}: {rules}"]


def _assumed(algorithm: Algorithm, scenario: Scenario) -> list[str]:
    """What cannot be known without training."""
    said = []
    for rule in algorithm.rules:
        facts = rule.trigger.facts
        if facts.known == "backward" or facts.needs:
            every = facts.period_steps
            when = "in every step" if every == 1 else f"every {every} steps"
            said.append(f"counted as if it exchanged {when}, the most that it can; its trigger decides")
        if facts.known == "event":
            said.append(f"an epoch was taken to have {scenario.round_steps} steps")
        if len(rule.compressor.phases) > 1:
            since = rule.compressor.phases[-1][0]
            said.append(f"counted as after its first {since} steps, from which on it codes otherwise")
    topology, groups = scenario.topology, scenario.links.groups
    if topology.has_groups and groups is not None and topology.groups(scenario.workers) == groups:
        said.append(f"its groups are those between which links are slow: {[len(one) for one in groups]}")
    return said


def _first_tasks(replay: Replay) -> list[tuple[int, Layout, int, Replay]]:
    """Of each rule that compresses, a bucket."""
    found = []
    for index, layout, element_bytes in replay.plan.first_buckets():
        if replay.plan.algorithm.rules[index].compressor != identity():
            found.append((index, layout, element_bytes, replay))
    return found


def _where_it_loses(
    index: int, layout: Layout, element_bytes: int, replay: Replay, scenario: Scenario
) -> str | None:
    """From which bandwidth on a compressor costs more time than it saves."""
    rule = replay.plan.algorithm.rules[index]
    facts = rule.exchange.facts
    if not facts.collective or facts.topology != "complete" or scenario.workers == 1:
        return None
    ways = scenario.workers, scenario.topology
    costs = {"speeds": scenario.speeds, "crowding": scenario.crowding}
    coder = rule.compressor.phases[-1][1]
    short = exchange_cost(rule.exchange, coder, layout, element_bytes, *ways, **costs)  # type: ignore[arg-type]
    full = exchange_cost(
        exchange_for(identity()),
        identity(),
        layout,
        element_bytes,
        *ways,
        **costs,  # type: ignore[arg-type]
    )
    saved = full.sent_bytes - short.sent_bytes
    if saved <= 0:
        return (
            f"compression loses at any bandwidth: among {scenario.workers} workers it sends "
            f"{short.sent_bytes / full.sent_bytes:.3g} times what full precision does"
        )
    worked = short.coding_seconds + short.work_seconds - full.work_seconds
    if worked <= 0:
        return None
    limit = Link(bytes_per_second=saved / worked)
    here = limit.bytes_per_second <= scenario.links.slowest.bytes_per_second
    return (
        f"compression loses where a worker's link is faster than {bandwidth(limit.bytes_per_second)}"
        f"{', as it is here' if here else ''}: coding takes {duration(short.coding_seconds)} a bucket"
    )


def _bandwidth_for(utilisation: float, replay: Replay) -> float | None:
    """The least that is enough; what is found is within a thousandth."""
    links = replay.scenario.links
    if infinitely_fast(links):
        links = type(links)(Link(links.slowest.latency_seconds, 1e9))  # type: ignore[call-arg]
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


def _memory(algorithm: Algorithm, items: Sequence[Item], scenario: Scenario) -> float:
    """Bytes a parameter, counted on a small model with as many parameters as fragments need."""
    count = max(_PROBES, min(len(items), 256))
    small = [Item(str(index), torch.zeros(_SIDE, _SIDE)) for index in range(count)]
    found = footprint(algorithm, small, Membership(0, scenario.workers), scenario.topology)
    return found.kept + found.buffers + found.under_way

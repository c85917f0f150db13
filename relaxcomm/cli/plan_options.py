"""What the options of `relaxcomm plan` mean: a model, times, links, numbers of workers, algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from relaxcomm.cli.compare import split_names
from relaxcomm.cli.job import required_of
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.config import Config, registry
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.errors import ConfigError
from relaxcomm.network import parse_link
from relaxcomm.planner.failures import Failures
from relaxcomm.planner.links import GraphLinks, Links, OwnLinks
from relaxcomm.planner.measuring import measure_coding, measure_steps
from relaxcomm.planner.replay import shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.planner.sites import SiteLinks
from relaxcomm.tasks.task import Task
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import one_matrix
from relaxcomm.topology import Topology
from relaxcomm.topology.custom import file

_LAYERS = 64  # into which a model is cut of which only the size is known


def parameters_of(task: Task | None, num_parameters: int | None) -> list[Item]:
    """The trainable parameters."""
    if num_parameters is not None:
        layers = min(_LAYERS, num_parameters)
        numbers = [num_parameters // layers + (one < num_parameters % layers) for one in range(layers)]
        return shapes_only([one_matrix(numel).shapes[0] for numel in numbers])
    if task is None:
        raise ConfigError("plan needs a model: a task in the configuration, or --parameters D")
    return [Item(name, one) for name, one in task.model.named_parameters() if one.requires_grad]


def told_times(
    step_seconds: float | None, measure: bool, jitter: float | None, stragglers: str | None
) -> dict[str, float]:
    """What the options say of the time of a step, by the names in `StepTimes`.

    Raises: ConfigError, also for a step's time that is neither told nor to be measured, or both.
    """
    if step_seconds is not None and measure:
        raise ConfigError("a step's time is told or measured: --step-seconds or --measure, not both")
    if step_seconds is None and not measure:
        raise ConfigError(
            "plan needs the time of a step: --step-seconds 0.1, or --measure for this machine's"
        )
    told = {} if step_seconds is None else {"seconds": step_seconds}
    if jitter is not None:
        told["jitter_seconds"] = jitter
    if stragglers is not None:
        share, often = _two_numbers(stragglers, "--stragglers is SHARE,TIMES, such as 0.01,3")
        told |= {"straggling": share, "straggling_times": often}
    StepTimes(**{"seconds": 1.0, **told})  # refuses what is out of range
    return told


def step_times_of(task: Task | None, settings: Config, told: dict[str, float]) -> StepTimes:
    """Those that were told; what was not, this machine tells."""
    if "seconds" in told:
        return StepTimes(**told)
    if task is None:
        raise ConfigError(
            "--measure trains the configuration's task, and there is none; use --step-seconds S"
        )
    return replace(measure_steps(task, settings.data.batch_size), **told)


def failures_of(text: str | None, settings: Config) -> Failures | None:
    """How workers die, and what the configuration has the others do then.

    Raises: ConfigError.
    """
    if text is None:
        return None
    life, away = _two_numbers(text, "--failures is LIFE,AWAY in seconds, such as 86400,60")
    saved = settings.checkpoint
    return Failures(
        life,
        away,
        elastic=settings.membership.elastic,
        saved_seconds=None if saved is None else saved.every_seconds,
        saved_steps=None if saved is None else saved.every_steps,
        quorum=settings.membership.quorum,
    )


def _two_numbers(text: str, usage: str) -> tuple[float, float]:
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        raise ConfigError(f"{usage}; got {text!r}") from None
    return first, second


def graph_of(path: Path | None, settings: Config) -> Topology | None:
    """Whose edges are the links: that of --topology, else a configured one that says how fast they are."""
    if path is not None:
        return file(path=str(path))
    if isinstance(settings.topology, file):
        edges = settings.topology.graph(settings.workers).edges(data=True)
        if any("bandwidth" in facts for _, _, facts in edges):
            return settings.topology
    return None


def links_for(
    workers: int, graph: Topology | None, settings: Config, links: str | None, sites: str | None
) -> Links:
    """The links of so many workers: a graph's, those of sites, or one for every worker.

    Raises: ConfigError.
    """
    link = None if links is None else parse_link(links)
    if link is not None and link.burst_bytes and not (graph is None and sites is None):
        raise ConfigError(
            f"--links {links!r} has a burst, and links that workers share have none here; leave it out, or "
            "--sites or the graph"
        )
    if graph is not None:
        if sites is not None:
            raise ConfigError("--sites and a graph of links both say what stands between workers; give one")
        nodes = graph.graph(settings.workers)
        if workers != len(nodes):
            raise ConfigError(
                f"the graph of the links has {len(nodes)} nodes, so plan for {len(nodes)} workers, not "
                f"{workers}"
            )
        return GraphLinks(nodes, link)
    if link is None:
        raise ConfigError("plan needs the network: --links 100mbit,5ms, or --topology sites.graphml")
    if sites is None:
        return OwnLinks(link)
    number, _, between = sites.partition(",")
    if not number.strip().isdecimal() or int(number) < 2 or not between:
        raise ConfigError(
            f"--sites is COUNT,RATE[,LATENCY] with 2 or more sites: 2,1gbit,20ms; got {sites!r}"
        )
    shared = parse_link(between)
    if shared.burst_bytes:
        raise ConfigError(f"--sites is COUNT,RATE[,LATENCY]: what workers share has no burst; got {sites!r}")
    count = int(number)
    if workers < count:
        raise ConfigError(f"--sites: {count} sites need {count} workers or more, and there are {workers}")
    return SiteLinks(workers, count, link, shared)


def worker_counts(settings: Config, graph: Topology | None, workers: str | None) -> list[int]:
    """The numbers of workers; those of a graph of links are its nodes.

    Raises: ConfigError.
    """
    if workers is None:
        return [settings.workers if graph is None else len(graph.graph(settings.workers))]
    try:
        asked = [int(one) for one in workers.split(",")]
    except ValueError:
        asked = [0]
    if min(asked) < 1 or len(set(asked)) < len(asked):
        raise ConfigError(
            f"--workers {workers!r} is not allowed; write numbers of 1 or more, each once: 4,16,64"
        )
    return asked


def scenarios(
    settings: Config, task: Task | None, times: StepTimes, links: dict[int, Links]
) -> Iterator[Scenario]:
    """One for each number of workers, with its links."""
    for workers, between in links.items():
        yield Scenario(
            workers=workers,
            step_times=times,
            links=between,
            topology=settings.topology,
            bucket_bytes=settings.bucket_bytes,
            samples=None if task is None else len(task.train_data),  # type: ignore[arg-type]
            batch_size=1 if task is None else settings.data.batch_size or task.batch_size,
        )


def algorithms_of(settings: Config, names: str | None) -> dict[str, Algorithm]:
    """The configuration's algorithm and those of its phases, or those that are named."""
    own = settings.algorithm
    if names is None:
        phases = {
            f"{one.algorithm.name} (after {one.after_steps} steps)": one.algorithm for one in settings.phases
        }
        return {own.name: own, **phases}
    wanted = sorted(registry.algorithms()) if names == "all" else split_names(names)
    return {
        name: own if name == own.name else parse_algorithm({"name": name, **required_of(name, own.name)})
        for name in wanted
    }


def speeds_of(
    algorithm: Algorithm, workers: int, measure: bool, coding: float | None, backend: str
) -> Speeds:
    """How fast this machine codes: as told, measured, or the usual of what the backend runs on."""
    if coding is not None:
        return Speeds(coding_base_seconds=0.0, coding_entry_seconds=1 / coding)
    if measure:
        return measure_coding(algorithm, workers)
    return Speeds.usual("cuda" if backend == "nccl" else "cpu")

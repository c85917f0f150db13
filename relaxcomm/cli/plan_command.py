"""`relaxcomm plan`: what algorithms will cost, before anything is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from relaxcomm.cli import plan_arguments as args
from relaxcomm.cli.exit_codes import RunFailed, readable
from relaxcomm.cli.job import ConfigPath, Sets, configured_task, read_job
from relaxcomm.cli.options import Traceback
from relaxcomm.cli.pictures import check_picture
from relaxcomm.cli.pilot_rows import pilots_as_json, show_pilots
from relaxcomm.cli.plan_options import (
    algorithms_of,
    failures_of,
    graph_of,
    links_for,
    parameters_of,
    scenarios,
    speeds_of,
    step_times_of,
    told_times,
    worker_counts,
)
from relaxcomm.cli.plan_pilots import Case, Training, train_all, training_of
from relaxcomm.cli.plan_plot import Planned, plot_forecasts, plot_pilots
from relaxcomm.cli.plan_rows import as_json, show_forecasts
from relaxcomm.config import Config
from relaxcomm.errors import CompositionError, TopologyError
from relaxcomm.planner.failures import Failures
from relaxcomm.planner.forecast import forecast
from relaxcomm.planner.scenario import Scenario
from relaxcomm.planner.two_levels import with_groups_of_links
from relaxcomm.system.telling import tell
from relaxcomm.tensors.items import Item
from relaxcomm.training.pilot_statistics import Pilot


def plan(
    config: ConfigPath,
    workers: args.WorkerCounts = None,
    algorithms: args.Names = None,
    step_seconds: args.StepSeconds = None,
    measure: args.Measure = False,
    links: args.LinkText = None,
    topology: args.Graph = None,
    sites: args.Sites = None,
    num_parameters: args.Parameters = None,
    jitter: args.Jitter = None,
    stragglers: args.Stragglers = None,
    deaths: args.Deaths = None,
    coding: args.Coding = None,
    train: args.Train = False,
    seeds: args.Seeds = None,
    target: args.Target = None,
    within: args.Within = None,
    as_lines: args.AsJson = False,
    picture: args.Picture = None,
    sets: Sets = None,
    traceback: Traceback = False,
) -> None:
    """Predict what algorithms will cost: time, bytes, utilisation, memory, and the bandwidth that they need.

    What each algorithm sends is replayed in virtual time; a line says which algorithms cannot run so. --train
    also trains the task, on simulated workers in the same virtual time, over several seeds; else nothing is
    said of quality.
    """
    with readable(traceback):
        training = training_of(train, seeds, target, within, num_parameters)
        if picture is not None:
            check_picture("--plot", picture)
        told = told_times(step_seconds, measure, jitter, stragglers)
        job = read_job(config).override(sets=sets)
        settings = job.load(any_topology=algorithms is not None)
        graph = graph_of(topology, settings)
        sizes = worker_counts(settings, graph, workers)
        links_of = {size: links_for(size, graph, settings, links, sites) for size in sizes}
        failures = failures_of(deaths, settings)
        made = algorithms_of(settings, algorithms)
        # Building a task takes seconds: what needs none has been refused before.
        task = None if settings.task is None else configured_task(settings, job.origin).build(settings.seed)
        items = parameters_of(task, num_parameters)
        times = step_times_of(task, settings, told)
        bare = list(scenarios(settings, task, times, links_of))
        cases = [
            (name, algorithm, with_groups_of_links(algorithm, replace(scenario, speeds=speeds)))
            for name, algorithm in made.items()
            for scenario in bare
            for speeds in [speeds_of(algorithm, scenario.workers, measure, coding, settings.backend)]
        ]
        plans, failed = _forecast_all(cases, items, failures)
        if algorithms == "all":  # whose own order is that of the alphabet
            plans.sort(key=lambda plan: (plan[0].workers, plan[2].replayed.step_seconds))
        pilots = [] if training is None else _train(cases, plans, settings, training, failed)
        _report(plans, pilots, failed, items, cases[0][2], training, as_lines, measured=measure)
        if picture is not None and plans:
            drawn = plot_pilots(pilots, picture) if pilots else plot_forecasts(plans, items, picture)
            if not as_lines:
                print(f"plot: {drawn}")
        if not plans:
            raise RunFailed("no algorithm can run so; why stands above", bad_input=True)


def _forecast_all(
    cases: Sequence[Case], items: Sequence[Item], failures: Failures | None
) -> tuple[list[Planned], dict[str, str]]:
    """What each costs, and why some cannot run."""
    plans: list[Planned] = []
    failed: dict[str, str] = {}
    for name, algorithm, scenario in cases:
        try:
            algorithm.check_topology(scenario.topology)
            found = forecast(algorithm, items, scenario, failures=failures)
            plans.append((scenario, algorithm, replace(found, name=name)))
        except (CompositionError, TopologyError) as error:
            failed[f"{name}, {scenario.workers} workers"] = str(error)
    return plans, failed


def _train(
    cases: Sequence[Case],
    plans: Sequence[Planned],
    settings: Config,
    training: Training,
    failed: dict[str, str],
) -> list[Pilot]:
    """Pilot runs of the cases that can run; why others fail in training is told in `failed`."""
    if settings.phases and any(algorithm != settings.algorithm for _, algorithm, _ in cases):
        own = settings.algorithm.name
        tell(f"--train: phases follow {own} alone; the others are trained from the first step on")
    able = {(one.name, scenario.workers) for scenario, _, one in plans}
    possible = [case for case in cases if (case[0], case[2].workers) in able]
    return train_all(possible, settings, training, failed)


def _report(
    plans: Sequence[Planned],
    pilots: Sequence[Pilot],
    failed: dict[str, str],
    items: Sequence[Item],
    base: Scenario,
    training: Training | None,
    as_lines: bool,
    *,
    measured: bool,
) -> None:
    numel = sum(item.tensor.numel() for item in items)
    found = [one for _, _, one in plans]
    asked = (None, None) if training is None else (training.target, training.within)
    if as_lines:
        said = as_json(found, failed, numel, base)
        print(json.dumps({**said, "training": pilots_as_json(pilots, *asked)}, indent=2))
        return
    show_forecasts(found, failed, numel, base, measured=measured)
    if pilots:
        print()
        show_pilots(pilots, *asked)

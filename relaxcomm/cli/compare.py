"""`relaxcomm compare`: several algorithms on the same task, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from relaxcomm.cli import report
from relaxcomm.cli.exit_codes import RunFailed, readable
from relaxcomm.cli.job import ConfigPath, Job, Sets, Workers, is_worker, read_job, required_of, tell_of_phases
from relaxcomm.cli.local_run import run
from relaxcomm.cli.options import Traceback, option
from relaxcomm.cli.pictures import check_matplotlib
from relaxcomm.cli.plot import plot
from relaxcomm.cli.table import link_in_words, show
from relaxcomm.cli.train import provenance
from relaxcomm.config import Config
from relaxcomm.errors import ConfigError, RelaxcommError
from relaxcomm.network import Link, parse_link
from relaxcomm.system.files import check_folder
from relaxcomm.system.mpi import num_processes
from relaxcomm.system.telling import tell
from relaxcomm.training.results import Result

_DEFAULT_OUTPUT = Path("runs")


def compare(
    config: ConfigPath,
    algorithms: Annotated[
        str,
        option(
            "Names; the configuration's own algorithm, under its name, keeps its parameters.", metavar="A,B,C"
        ),
    ],
    workers: Workers = None,
    link: Annotated[
        str | None,
        option(
            "Simulate a slow network: each worker's link, such as 100mbit,5ms.",
            metavar="RATE[,LATENCY[,BURST]]",
        ),
    ] = None,
    sets: Sets = None,
    traceback: Traceback = False,
) -> None:
    """Train the configured task with several algorithms in turn; ends with a table, a plot and a report.

    The task, its seed and its learning rate are the same for all. --set algorithm.KEY=VALUE and phases speak
    of the configuration's own algorithm. Local workers exchange in memory, much faster than over a network;
    --link holds each result back until its bytes would have passed the worker's link. One algorithm that
    fails leaves the others their results.
    """
    with readable(traceback):
        if num_processes() > 1 or is_worker():
            raise ConfigError("compare starts its own workers; call it without torchrun, srun or mpirun")
        check_matplotlib("compare")
        simulated = None if link is None else parse_link(link)
        names = split_names(algorithms)
        jobs = dict(zip(names, make_jobs(config, names, workers, sets or [], simulated), strict=True))
        loaded = {name: job.load_for_training() for name, job in jobs.items()}
        one = loaded[names[0]]
        _check_comparable(one)
        results, failed = train_all(jobs, loaded, verbose=traceback)
        why = {name: str(error) for name, error in failed.items()}
        written = _draw(results, why, one, config.stem) if results else ""
        show(results, why)  # last: its reader may be gone
        print(written, end="")
        if failed:
            raise summary(failed, len(jobs))


def _check_comparable(settings: Config) -> None:
    """Refuse a section that all algorithms would share, and a folder that cannot be written to."""
    if settings.checkpoint is not None:
        raise ConfigError(
            "checkpoint: compare trains several algorithms, and would go on with one from another's "
            "checkpoint; leave the section out: --set checkpoint=null"
        )
    check_folder("output", settings.output or _DEFAULT_OUTPUT)


def train_all(
    jobs: Mapping[str, Job], loaded: Mapping[str, Config], *, verbose: bool
) -> tuple[list[Result], dict[str, RunFailed]]:
    """Train with one after the other; whatever fails, the others have a result, written at once."""
    results: list[Result] = []
    failed: dict[str, RunFailed] = {}
    for name, job in jobs.items():
        settings = loaded[name]
        try:
            results.append(run(job, settings, verbose=verbose))
            if settings.output is not None:
                path = results[-1].write(settings.output, provenance(settings))
                tell(f"result: {path}")
        except (RunFailed, RelaxcommError) as error:
            failed[name] = error if isinstance(error, RunFailed) else RunFailed(str(error))
            tell(f"{name} failed: {error}")
    return results, failed


def _draw(results: list[Result], failed: Mapping[str, str], settings: Config, stem: str) -> str:
    """Write the pictures and the page; what to say of them."""
    folder = Path(settings.output or _DEFAULT_OUTPUT)
    picture = plot(results, folder / f"{stem}.png")
    page = report.write(results, provenance(settings), folder / f"{stem}.html", failed)
    return f"link: {link_in_words(results[0])}\nplot: {picture}\nreport: {page}\n"


def summary(failed: Mapping[str, RunFailed], number: int) -> RunFailed:
    """The error of a comparison in which some or all have failed."""
    text = f"{len(failed)} of {number} algorithms failed: {', '.join(failed)}"
    details = "\n".join(error.details for error in failed.values() if error.details)
    bad_input = len(failed) == number and all(error.bad_input for error in failed.values())
    return RunFailed(f"{text}; each one's message stands above", details, bad_input=bad_input)


def split_names(text: str) -> list[str]:
    """The names of a comma-separated list.

    Raises: ConfigError for an empty list or a name that comes twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"--algorithms {text!r} is not allowed; write different names: bsp,local_sgd")
    return names


def make_jobs(
    config: Path, names: Sequence[str], workers: int | None, sets: Sequence[str], link: Link | None = None
) -> list[Job]:
    """One job an algorithm; a `--set` below `algorithm` goes to the configuration's own only.

    Raises: ConfigError.
    """
    common = [text for text in sets if not text.startswith("algorithm.")]
    if any(text.startswith("algorithm=") for text in common):
        raise ConfigError("compare takes its algorithms from --algorithms, not from --set algorithm=…")
    job = replace(read_job(config), link=link)
    configured, own = job.override(workers, common), job.algorithm
    if len(common) < len(sets) and own not in names:
        raise ConfigError(
            f"--set algorithm.… speaks of the configuration's {own}, which --algorithms does not name"
        )
    jobs = [job.override(workers, sets) if name == own else _other(configured, name) for name in names]
    tell_of_phases(configured, jobs)
    return [_named_apart(*pair) for pair in zip(jobs, names, strict=True)]


def _other(configured: Job, name: str) -> Job:
    """The job of another algorithm than the configuration's own."""
    required = {f"algorithm.{key}": value for key, value in required_of(name, configured.algorithm).items()}
    return configured.override(algorithm=name).over(required)


def _named_apart(job: Job, name: str) -> Job:
    """The job, with the algorithm in the run's name if it has one: all write their logs to one folder."""
    metrics = job.values.get("metrics")
    run = metrics.get("run") if isinstance(metrics, Mapping) else None
    return job if run is None else job.over({"metrics.run": f"{run}-{name}"})

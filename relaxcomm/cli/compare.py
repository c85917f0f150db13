"""`relaxcomm compare`: several algorithms on the same task, one after the other."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from relaxcomm.cli import report
from relaxcomm.cli.failures import readable
from relaxcomm.cli.job import ConfigPath, Job, Sets, Traceback, Workers, is_worker, make_job
from relaxcomm.cli.launcher import launch
from relaxcomm.cli.plot import plot
from relaxcomm.cli.train import finish, provenance
from relaxcomm.errors import ConfigError

_DEFAULT_OUTPUT = Path("runs")


def compare(
    config: ConfigPath,
    algorithms: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Names; the configuration's own algorithm, under its name, keeps its parameters.",
            show_default=False,
        ),
    ],
    workers: Workers = None,
    sets: Sets = None,
    traceback: Traceback = False,
) -> None:
    """Train the configured task with several algorithms in turn; ends with a table, a plot and a report.

    The task, its seed and its learning rate are the same for all. --set algorithm.KEY=VALUE speaks of the
    configuration's own algorithm.
    """
    with readable(traceback):
        if is_worker():
            raise ConfigError("compare starts its own workers; call it without torchrun")
        if importlib.util.find_spec("matplotlib") is None:
            raise ConfigError("compare draws with matplotlib; install it with: pip install 'relaxcomm[demo]'")
        jobs = make_jobs(config, split_names(algorithms), workers, sets or [])
        loaded = [job.load_for_training() for job in jobs]
        results = [
            launch(job.train, one.workers, verbose=traceback) for job, one in zip(jobs, loaded, strict=True)
        ]
        finish(loaded[0], results)
        folder = Path(loaded[0].output or _DEFAULT_OUTPUT)
        print(f"plot: {plot(results, folder / f'{config.stem}.png')}")
        print(f"report: {report.write(results, provenance(loaded[0]), folder / f'{config.stem}.html')}")


def split_names(text: str) -> list[str]:
    """The names of a comma-separated list.

    Raises: ConfigError for an empty list or a name that comes twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"--algorithms {text!r} is not allowed; write different names: bsp,local_sgd")
    return names


def make_jobs(config: Path, names: Sequence[str], workers: int | None, sets: Sequence[str]) -> list[Job]:
    """One job an algorithm; a `--set` below `algorithm` goes to the configuration's own only.

    Raises: ConfigError.
    """
    common = [text for text in sets if not text.startswith("algorithm.")]
    if any(text.startswith("algorithm=") for text in common):
        raise ConfigError("compare takes its algorithms from --algorithms, not from --set algorithm=…")
    own = make_job(config, workers, common).load().algorithm.name
    if len(common) < len(sets) and own not in names:
        raise ConfigError(
            f"--set algorithm.… speaks of the configuration's {own}, which --algorithms does not name"
        )
    return [
        make_job(config, workers, sets if name == own else common, None if name == own else name)
        for name in names
    ]

"""A job: a configuration file, what overrides it, and the checks before any worker starts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from relaxcomm import config
from relaxcomm.cli.options import option, written
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config, registry
from relaxcomm.config.configuration import WorkerCount
from relaxcomm.config.examples import from_example, taken_in_words
from relaxcomm.config.origin import Origin
from relaxcomm.config.unread_keys import check_size, warn_of_idle_guard
from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import shown
from relaxcomm.network import Link
from relaxcomm.system.environment import launched, whole_number
from relaxcomm.system.files import check_folder
from relaxcomm.system.mpi import unread_processes
from relaxcomm.system.slurm import follow_srun
from relaxcomm.system.telling import tell
from relaxcomm.system.warn import told_before
from relaxcomm.tasks.task_loader import TaskFactory, find_task
from relaxcomm.training import devices
from relaxcomm.training.results import Result

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.", show_default=False)]
Workers = Annotated[
    int | None, option("Local processes.", "--workers", metavar="N", parser=written(WorkerCount))
]
Sets = Annotated[
    list[str] | None,
    option("Override a key: data.batch_size=64; repeatable.", "--set", metavar="KEY=VALUE"),
]


@dataclass(frozen=True)
class Job:
    """What a worker needs to load its configuration; picklable.

    The file is read once: it may be a pipe, and a worker that begins again must get what the others have.

    Args:
        values: the keys, unchecked.
        origin: what errors call the place where they stand.
        link: what is simulated between the workers, or None.
    """

    values: Mapping[str, Any]
    origin: Origin
    link: Link | None = None

    def load(self, *, any_topology: bool = False) -> Config:
        """The checked configuration.

        Args:
            any_topology: take one that its algorithms cannot use, for who asks of other algorithms.

        Raises: ConfigError or CompositionError.
        """
        return config.load_values(self.values, self.origin, any_topology=any_topology)

    @property
    def algorithm(self) -> object:
        """The name of the configuration's own algorithm, which may be wrong where another is asked for."""
        own = self.values.get("algorithm")
        return own.get("name", Algorithm.name) if isinstance(own, Mapping) else own

    def override(
        self, workers: int | None = None, sets: Sequence[str] | None = None, algorithm: str | None = None
    ) -> Job:
        """The job that the command line makes of it.

        `--algorithm` comes before `--set`, so that `--set algorithm.steps=8` speaks of that algorithm; a name
        that is the configuration's own keeps its parameters, and its phases.

        Raises: ConfigError for a `--set` that is not KEY=VALUE.
        """
        overrides: dict[str, Any] = {}
        if algorithm is not None and self.algorithm != algorithm:
            overrides |= {"algorithm": algorithm, "phases": []}
        overrides |= dict(parse_set(text) for text in sets or ())
        if workers is not None:
            overrides["workers"] = workers
        return self.over(overrides)

    def over(self, overrides: Mapping[str, Any]) -> Job:
        """The job with other values of dotted keys."""
        values, _ = config.read_values(self.values, overrides)
        return replace(self, values=values, origin=self.origin.without(overrides))

    def load_for_training(self) -> Config:
        """The configuration, and a look at everything that would fail in the workers.

        Raises: ConfigError, CompositionError or TopologyError.
        """
        with told_before() if launched().rank else nullcontext():
            loaded = self.load()
        configured_task(loaded, self.origin)
        loaded.membership.read_secret()
        if not is_worker():  # workers that a launcher started compare what is wrong when they attach
            check_size(loaded, self.origin, loaded.workers)
        if self.link is not None and loaded.workers == 1:
            raise ConfigError("--link slows what workers send to each other, and workers is 1; start more")
        if loaded.output is not None:
            check_folder("output", loaded.output)
        if loaded.checkpoint is not None:
            check_folder("checkpoint.path", loaded.checkpoint.path)
        if launched().rank == 0:
            warn_of_idle_guard(loaded)
        devices.choose_device(loaded, whole_number("LOCAL_WORLD_SIZE", loaded.workers, least=1))
        return loaded

    def train(self) -> Result:
        """Train on this rank; what each worker does."""
        from relaxcomm.training import trainer  # which other commands do without

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the command has said what there is to say of the configuration
            loaded = self.load()
        return trainer.train(loaded, self.link).result


def configured_task(loaded: Config, origin: Origin) -> TaskFactory:
    """The task that a configuration names, not yet built.

    Raises: ConfigError, naming the place where the configuration stands.
    """
    with origin.told("task"):
        return find_task(loaded.task, Path(origin.name))


def required_of(name: str, own: object) -> dict[str, Any]:
    """What an algorithm requires, as its example has it, which is told; of most nothing.

    Args:
        name: of another algorithm than the configuration's own.
        own: the name of that one.

    Raises: ConfigError with the closest match for an unknown name, or where the example has none; PluginError
        for one that is left out.
    """
    try:
        entry = registry.algorithm(name)
    except ConfigError as error:
        error.add_note(f"the configuration's own is {own}")
        raise
    taken = from_example(name, entry.build, {})
    if taken:
        tell(f"{name}: {taken_in_words(taken)}; for another, make it the configuration's own algorithm")
    return taken


def tell_of_phases(configured: Job, jobs: Sequence[Job]) -> None:
    """Tell where jobs of other algorithms leave out what a configuration plans for its own."""
    if configured.values.get("phases") and not all(job.values.get("phases") for job in jobs):
        own = configured.algorithm
        tell(f"phases follow {own} alone; other algorithms are trained from the first step on")


def read_job(path: Path) -> Job:
    """The job of a YAML file.

    Raises: ConfigError where there is none.
    """
    return Job(*config.read_values(path))


def parse_set(text: str) -> tuple[str, Any]:
    """Split `a.b=value`; the value is read as YAML.

    Raises: ConfigError.

    Example:
        >>> parse_set("data.batch_size=64")
        ('data.batch_size', 64)
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(
            f"--set {shown(text)} is not allowed; write KEY=VALUE, such as --set data.batch_size=64"
        )
    with Origin(f"--set {shown(text)}").told():
        return key, config.parse_yaml(value)


def parse_option(option: str, text: str) -> Any:
    """The value of an option that is YAML.

    Raises: ConfigError.
    """
    with Origin(f"{option} {shown(text)}").told():
        return config.parse_yaml(text)


def is_worker() -> bool:
    """Whether a launcher such as torchrun or srun has started this process as one rank of several.

    Raises: ConfigError for variables of Slurm's that it has not set so, and for several processes of
        mpirun's, each of which would start workers of its own.
    """
    follow_srun()
    if (said := unread_processes()) is not None:
        raise ConfigError(said)
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ

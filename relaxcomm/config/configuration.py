"""All of a configuration, checked as a whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from os import PathLike
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.grammar import check_no_algorithm, parameters_of, parse_primitive
from relaxcomm.config.keys import explain, put, read
from relaxcomm.config.origin import Origin
from relaxcomm.config.sections import (
    CheckpointConfig,
    DataConfig,
    DriftGuard,
    MembershipConfig,
    ParsedAlgorithm,
    Phase,
)
from relaxcomm.errors import ConfigError, RelaxcommError, TopologyError
from relaxcomm.fields.frozen import PathText, Section
from relaxcomm.monitoring.metrics_settings import MetricsConfig
from relaxcomm.tasks.task_loader import name_and_options
from relaxcomm.topology import Topology, complete, from_networkx

WorkerCount: TypeAlias = Annotated[int, Field(ge=1, le=4096)]
_LOSSES = 16  # that are looked at before a run: each takes graphs of its own


def _parsed_topology(value: object) -> object:
    networkx = sys.modules.get("networkx")  # who has a graph has imported it; it takes long
    is_graph = networkx is not None and isinstance(value, networkx.Graph)
    return from_networkx(value) if is_graph else parse_primitive("topology", value)


class Config(Section):
    """Everything that a YAML file may say.

    Args:
        algorithm: a name, a name with parameters, or rules.
        phases: algorithms that take over later in the run, in order.
        topology: the graph of the workers.
        task: what `relaxcomm train` trains: a bundled task, one with options, or "package.module:make".
        workers: local processes that `relaxcomm train` starts, 4,096 at most.
        backend: "auto" takes NCCL for CUDA parameters and Gloo for CPU ones.
        seed: of the task's data and model, less than 2^31.
        bucket_bytes: capacity of a bucket, in bytes.
        data: how the training data are read.
        checkpoint: when a run is saved, and from where it goes on, or None.
        drift_guard: how replicas that should be equal are compared, or None.
        membership: what becomes of a run that loses ranks.
        metrics: where each rank's metrics can be read, or None.
        timeout_seconds: the longest that a rank waits for another; a year at most.
        output: folder for results and run logs, or None.
        debug: compare labels, shapes and dtypes before every operation, and not after a thousand (slow).
    """

    algorithm: ParsedAlgorithm
    phases: tuple[Phase, ...] = ()
    topology: Annotated[
        Topology, BeforeValidator(_parsed_topology), PlainSerializer(repr, return_type=str)
    ] = complete()
    task: str | dict[str, Any] | None = None
    workers: WorkerCount = 2
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    bucket_bytes: Annotated[int, Field(ge=1, lt=2**40)] = 26_214_400
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig | None = None
    drift_guard: DriftGuard | None = None
    membership: MembershipConfig = MembershipConfig()
    metrics: MetricsConfig | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)] = 300.0
    output: PathText | None = None
    debug: bool = False

    @field_validator("task", mode="before")
    @classmethod
    def _check_task(cls, value: object) -> object:
        if value is not None:
            name_and_options(value)
        return value

    @field_validator("phases", mode="before")
    @classmethod
    def _take_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check_phases(self) -> Config:
        for algorithm in self.algorithms:
            if self.phases and algorithm.chooses_batches:
                raise ConfigError(
                    f"phases with {algorithm.name}, which chooses the batches, by a loader that follows it "
                    "to the end; leave phases out, or in a script of your own close the engine, and attach "
                    "again with the other algorithm"
                )
        starts = [phase.after_steps for phase in self.phases]
        if starts != sorted(set(starts)):
            raise ConfigError(
                f"phases begin after {starts} steps; give each a larger after_steps than the last"
            )
        return self

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """The algorithm, and those of the phases."""
        return (self.algorithm, *(phase.algorithm for phase in self.phases))

    def with_algorithm(self, algorithm: object) -> Config:
        """This configuration with another algorithm.

        Raises: ConfigError, CompositionError.
        """
        return load({**dict(self), "algorithm": algorithm, "phases": ()})

    @property
    def topologies(self) -> Mapping[str, Topology]:
        """The configured topology and those that rules have of their own, by what errors call them."""
        found = {"topology": self.topology}
        for phase, algorithm in enumerate(self.algorithms, start=-1):
            where = "" if phase < 0 else f" of phase {phase}"
            for index, rule in enumerate(algorithm.rules):
                override = rule.exchange.topology_override()
                if override is not None:
                    found[f"topology of rule {index}{where}"] = override
        return found

    def describe_topologies(self, world_size: int) -> dict[str, str]:
        """What these are for a number of workers, as text that ranks can compare."""
        return {name: topology.describe(world_size) for name, topology in self.topologies.items()}

    def check_topology(self) -> None:
        """Refuse a topology that one of its algorithms cannot use.

        Raises: CompositionError, saying which can.
        """
        for algorithm in self.algorithms:
            algorithm.check_topology(self.topology)

    def check_world_size(self, world_size: int) -> None:
        """Refuse topologies that this number of workers cannot have, or over which they would not mix.

        Raises: TopologyError.
        """
        for algorithm in self.algorithms:
            for rule in algorithm.rules:
                rule.exchange.check_graph(rule.exchange.topology_override() or self.topology, world_size)

    def fewest(self, world_size: int) -> int:
        """The least number of so many workers with which to reckon."""
        membership = self.membership
        return max(membership.quorum, world_size - _LOSSES) if membership.elastic else world_size

    def check_losses(self, world_size: int) -> None:
        """Refuse an elastic run that could not go on when some of its workers are lost, down to its quorum.

        Raises: TopologyError.
        """
        for left in range(world_size - 1, self.fewest(world_size) - 1, -1):
            try:
                self.check_world_size(left)
            except TopologyError as error:
                ends = f"set membership.quorum to {left + 1}, with fewer than which the run ends"
                raise TopologyError(
                    f"membership.elastic: {left} of the {world_size} workers could not go on: {error}; take "
                    "what any number of workers can have, such as the topology ring, or hierarchical with "
                    f"one number for all groups, or {'leave elastic out' if left + 1 == world_size else ends}"
                ) from None


def read_values(
    source: str | PathLike[str] | Mapping[str, Any] | Algorithm, overrides: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Origin]:
    """A configuration's keys, unchecked, as `load` takes them, and what errors call the place.

    Args:
        source: as `load` has it.
        overrides: as `load` has them.

    Raises: ConfigError where there is none.
    """
    values, origin = read(source)
    for key, value in (overrides or {}).items():
        put(values, key, value)
    return values, origin.without(overrides or ())


def load(
    source: str | PathLike[str] | Mapping[str, Any] | Algorithm, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Read and check a configuration.

    Args:
        source: a YAML file, a mapping of the same shape, or an algorithm.
        overrides: values by dotted key, such as `{"data.batch_size": 64}`, that win over the file.

    Returns: the frozen configuration.

    Raises: ConfigError or CompositionError: what was got, what is allowed, what to do.

    Example:
        >>> load({"algorithm": "bsp"}).workers
        2
    """
    return load_values(*read_values(source, overrides))


def load_values(values: Mapping[str, Any], origin: Origin, *, any_topology: bool = False) -> Config:
    """Check a configuration's keys, see `load`.

    Args:
        values: the keys, as `read_values` gives them.
        origin: what errors call the place where they stand.
        any_topology: take one that its algorithms cannot use, for who asks of other algorithms.
    """
    if not values.keys() & Config.model_fields.keys():
        check_no_algorithm(values, origin)
    try:
        made = Config(**values)
    except RelaxcommError as error:
        raise type(error)(f"{origin}: {error}") from None
    except ValidationError as error:
        raise explain(error, origin, Config, parameters_of(values.get("algorithm"))) from None
    if not any_topology:
        with origin.told("topology"):
            made.check_topology()
    return made

"""YAML to validated, frozen configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, get_args

import networkx as nx
import yaml
from pydantic import (
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from relaxcomm.algorithm import Algorithm
from relaxcomm.data import Injection, Partition, iid
from relaxcomm.errors import ConfigError, RelaxcommError
from relaxcomm.frozen import Section
from relaxcomm.grammar import parse_algorithm, parse_primitive
from relaxcomm.metrics.settings import MetricsConfig
from relaxcomm.topology import Topology, complete, from_networkx
from relaxcomm.validation import closest

Positive = Annotated[int, Field(ge=1)]


class DataConfig(Section):
    """How the training data are read.

    Args:
        batch_size: samples a worker and step; None for the task's own.
        partition: how samples are shared out; `iid` shuffles them over all workers in every epoch.
        micro_batch_size: samples of a backward, at most, in `relaxcomm train`; the rest is accumulated.
        injection: samples that workers share with the others in each step, or None.
    """

    batch_size: Positive | None = None
    partition: Partition = iid()
    injection: Injection | None = None
    micro_batch_size: Positive | None = None

    @field_validator("partition", mode="before")
    @classmethod
    def _parse_partition(cls, value: object) -> object:
        return value if isinstance(value, Partition) else parse_primitive("partition", value)

    @field_serializer("partition")
    def _show_partition(self, value: Partition) -> str:
        return repr(value)

    @field_validator("injection", mode="before")
    @classmethod
    def _parse_injection(cls, value: object) -> object:
        return (
            Injection(**{str(key): item for key, item in value.items()}) if isinstance(value, dict) else value
        )


class DriftGuard(Section):
    """How replicas that should be equal are compared.

    Args:
        every_steps: optimizer steps from one comparison to the next, at least; it is made where the
            algorithm has made the replicas equal.
        policy: "error"; "warn"; or "average", which warns and goes on from the mean.
    """

    every_steps: Positive = 100
    policy: Literal["error", "warn", "average"] = "error"


class Phase(Section):
    """An algorithm that takes over in the middle of a run.

    Args:
        after_steps: optimizer steps of the run after which it does.
        algorithm: as the key of that name.
        residuals: what becomes of what compressors have left to send: "carry" it over, or "drop" it.
    """

    after_steps: Positive
    algorithm: Algorithm
    residuals: Literal["carry", "drop"] = "carry"

    @field_validator("algorithm", mode="before")
    @classmethod
    def _parse_algorithm(cls, value: object) -> Algorithm:
        return parse_algorithm(value)


class Config(Section):
    """Everything that a YAML file may say.

    Args:
        algorithm: a name, a name with parameters, or rules.
        phases: algorithms that take over later in the run, in order.
        topology: the graph of the workers.
        task: what `relaxcomm train` trains: a bundled task, one with options, or "package.module:make".
        workers: local processes that `relaxcomm train` starts.
        backend: "auto" takes NCCL for CUDA parameters and Gloo for CPU ones.
        seed: of the task's data and model.
        bucket_bytes: capacity of a bucket, in bytes.
        data: how the training data are read.
        drift_guard: how replicas that should be equal are compared, or None.
        metrics: where each rank's metrics can be read, or None.
        timeout_seconds: the longest that a rank waits for another.
        output: folder for results and run logs, or None.
        debug: compare labels, shapes and dtypes before every operation (slow).
    """

    algorithm: Algorithm
    phases: tuple[Phase, ...] = ()
    topology: Topology = complete()
    task: str | dict[str, Any] | None = None
    workers: Positive = 2
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    seed: Annotated[int, Field(ge=0)] = 0
    bucket_bytes: Positive = 26_214_400
    data: DataConfig = DataConfig()
    drift_guard: DriftGuard | None = None
    metrics: MetricsConfig | None = None
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    output: str | None = None
    debug: bool = False

    @field_validator("topology", mode="before")
    @classmethod
    def _parse_topology(cls, value: object) -> object:
        if isinstance(value, Topology):
            return value
        return from_networkx(value) if isinstance(value, nx.Graph) else parse_primitive("topology", value)

    @field_validator("algorithm", mode="before")
    @classmethod
    def _parse_algorithm(cls, value: object) -> Algorithm:
        return parse_algorithm(value)

    @field_serializer("topology")
    def _show_topology(self, value: Topology) -> str:
        return repr(value)

    @field_validator("phases", mode="before")
    @classmethod
    def _take_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check_topology(self) -> Config:
        for algorithm in self.algorithms:
            algorithm.check_topology(self.topology)
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
        """The same with another algorithm.

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
                own = rule.exchange.own_topology()
                if own is not None:
                    found[f"topology of rule {index}{where}"] = own
        return found

    def describe_topologies(self, world_size: int) -> dict[str, str]:
        """What these are for a number of workers, as text that ranks can compare."""
        return {name: topology.describe(world_size) for name, topology in self.topologies.items()}

    def check_world_size(self, world_size: int) -> None:
        """Refuse topologies that this number of workers cannot have, or over which they would not mix.

        Raises: TopologyError.
        """
        for algorithm in self.algorithms:
            for rule in algorithm.rules:
                rule.exchange.check_graph(rule.exchange.own_topology() or self.topology, world_size)


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
    values, origin = _read(source)
    for key, value in (overrides or {}).items():
        _put(values, key, value)
    if "algorithm" not in values:
        raise ConfigError(f"{origin}: 'algorithm' is missing; name one, such as algorithm: bsp")
    try:
        return Config(**values)
    except RelaxcommError as error:
        raise type(error)(f"{origin}: {error}") from None
    except ValidationError as error:
        raise _readable(error, origin) from None


def _read(source: object) -> tuple[dict[str, Any], str]:
    if isinstance(source, Algorithm):
        return {"algorithm": source}, "configuration"
    if isinstance(source, Mapping):
        return {str(key): value for key, value in source.items()}, "configuration"
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"a configuration is a path, a mapping or an Algorithm, got {source!r}")
    path = Path(source)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a configuration is a mapping such as 'algorithm: bsp', got {values!r}")
    return {str(key): value for key, value in values.items()}, str(path)


def _put(values: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key; an algorithm or task that is a bare name becomes a mapping to hold a parameter."""
    *path, last = key.split(".")
    place = values
    for part in path:
        inner = place.get(part)
        if part == "algorithm" and isinstance(inner, str):
            inner = {"name": inner}
        if part == "task" and isinstance(inner, str):
            inner = {inner: {}}
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigError(f"{key}: {part} is {inner!r} and holds no keys")
        place[part] = dict(inner or {})
        place = place[part]
    place[last] = value


def _readable(error: ValidationError, origin: str) -> RelaxcommError:
    lines = []
    for fault in error.errors():
        place = ".".join(str(part) for part in fault["loc"])
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, RelaxcommError):
            return type(cause)(f"{origin}: {cause}")
        if fault["type"] == "extra_forbidden":
            keys = _section(fault["loc"]).model_fields
            lines.append(f"{origin}: unknown key {place!r}{closest(str(fault['loc'][-1]), keys)}")
        else:
            lines.append(f"{origin}: {place}: {fault['input']!r} is not allowed: {fault['msg']}")
    return ConfigError("\n".join(lines))


def _section(place: Sequence[int | str]) -> type[Section]:
    """The section that holds a key."""
    section: type[Section] = Config
    for part in place[:-1]:
        if isinstance(part, str):  # numbers are places in a list
            annotation = section.model_fields[part].annotation
            section = next(one for one in (annotation, *get_args(annotation)) if _is_section(one))
    return section


def _is_section(value: object) -> TypeGuard[type[Section]]:
    return isinstance(value, type) and issubclass(value, Section)

"""What users give to `attach`: a configuration in one of its forms, optimizers, a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config, load, load_values, names_yaml, read_values, registry
from relaxcomm.config.origin import Origin
from relaxcomm.engine.attaching.attached_models import all_attached
from relaxcomm.engine.attaching.binding import fitted
from relaxcomm.engine.attaching.model_checks import check_initialised, check_model
from relaxcomm.errors import CompositionError, ConfigError, RelaxcommError, UsageError
from relaxcomm.fields.validation import shown
from relaxcomm.network.secret import Secret
from relaxcomm.replica.named_parameters import named_parameters, trainable
from relaxcomm.replica.shard_groups import check_replicas
from relaxcomm.replica.wrappers import check_apart, check_unwrapped

_UNTOLD = Origin("configuration")
_TO_MEET = {"timeout_seconds", "membership", "backend", "debug"}  # keys that say how ranks meet


@dataclass
class Given:
    """What `attach` was given, as far as it could be read: what is wrong with it is told to the others first.

    Args:
        model: an empty one where what was given is none.
        settings: the configuration, None where it is broken.
        values: of its keys, as they were given.
        origin: what errors call the place where its keys stand.
        secret: that all ranks share, or None.
        optimizers: each once.
        problem: what is wrong, or None.
    """

    model: nn.Module
    settings: Config | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = _UNTOLD
    secret: Secret | None = None
    optimizers: tuple[Optimizer, ...] = ()
    problem: Exception | None = None

    def checked(self) -> Config:
        """The configuration; raises what is wrong."""
        if self.problem is not None:
            raise self.problem
        assert self.settings is not None, "it was read, or something is wrong"
        return self.settings

    @property
    def to_meet(self) -> Config:
        """By what the others are met: the configuration or, where it is broken, what can be read of it."""
        if self.settings is not None:
            return self.settings
        readable: dict[str, Any] = {"algorithm": "bsp"}
        for key in self.values.keys() & _TO_MEET:
            with suppress(RelaxcommError):
                load({**readable, key: self.values[key]})
                readable[key] = self.values[key]
        return load(readable)


def read(
    model: object,
    optimizer: object,
    config: str | Path | Mapping[str, Any] | Algorithm | Config,
    scaler: object,
    group: object,
) -> Given:
    """Read the arguments of `attach`, and check them on this rank."""
    given = Given(model if isinstance(model, nn.Module) else nn.Module())
    try:
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"{type(model).__name__} is no torch.nn.Module, whose training could be followed; give the "
                "model itself, and first: attach(model, optimizer, config)"
            )
        if isinstance(config, Config):
            given.settings = config
        else:
            given.values, given.origin = read_values(_named(config))
            given.settings = load_values(given.values, given.origin)
        given.secret = given.settings.membership.read_secret()
        given.optimizers = _listed(optimizer)
        if not isinstance(scaler, GradScaler | None):
            raise UsageError(
                f"{shown(scaler)} is no torch.amp.GradScaler; pass the one that scales the loss, or None"
            )
        _check(given.model, given.optimizers, given.settings)
        check_replicas(given.model, group)
    except Exception as error:
        given.problem = error
        if given.settings is None:
            with suppress(RelaxcommError):
                given.secret = given.to_meet.membership.read_secret()
    return given


def _listed(optimizer: object) -> tuple[Optimizer, ...]:
    """The optimizers, each once.

    Raises: UsageError for what is none.
    """
    given = () if optimizer is None else optimizer
    many = tuple(given) if isinstance(given, Sequence) else (given,)
    for one in many:
        if isinstance(one, type) and issubclass(one, Optimizer):
            raise UsageError(
                f"{one.__name__} is the class of an optimizer; pass one that is made, such as "
                f"{one.__name__}(model.parameters(), lr=0.1)"
            )
        if not isinstance(one, Optimizer):
            raise UsageError(
                f"{type(one).__name__} is no torch.optim.Optimizer, whose steps could be followed; pass the "
                "optimizer inside it, several as a list, or None"
            )
        if not hasattr(one, "_optimizer_step_pre_hooks"):  # it never ran Optimizer's own constructor
            raise UsageError(
                f"{type(one).__name__} wraps an optimizer, and its own steps cannot be followed; pass the "
                "optimizer inside it, or with Accelerate prepare both by "
                "relaxcomm.integrations.accelerate.Accelerator(relaxcomm=config)"
            )
    if not many and optimizer is not None:
        raise UsageError("the list of optimizers is empty; pass None to train without one")
    if len(set(many)) < len(many):
        raise UsageError("an optimizer is listed twice; pass each once")
    return many


def _check(model: nn.Module, optimizers: Sequence[Optimizer], settings: Config) -> None:
    """Refuse a model that is taken, or that an algorithm cannot work with."""
    if next(model.parameters(), None) is None:
        raise CompositionError("the model has no parameters")
    named = named_parameters(model)
    check_initialised(model, named)
    check_apart(model, named, all_attached())
    check_unwrapped(model, named)
    for algorithm in settings.algorithms:
        check_model(model, named, optimizers, fitted(trainable(named), algorithm))


def _named(config: str | Path | Mapping[str, Any] | Algorithm) -> str | Path | Mapping[str, Any] | Algorithm:
    """What to load: a string that names no file, and does not look like one, is an algorithm's name.

    Raises: ConfigError for a name that no algorithm has.
    """
    if not isinstance(config, str) or Path(config).is_file() or names_yaml(config):
        return config
    try:
        registry.algorithm(config)
    except ConfigError as error:
        raise ConfigError(f"{config!r} is no file; {error}") from None
    return {"algorithm": config}

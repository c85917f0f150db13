"""Keys of a configuration that have no effect, or cannot be honoured, in a run: refused, or named."""

from __future__ import annotations

from collections.abc import Iterator

from relaxcomm.config import Config
from relaxcomm.config.origin import Origin
from relaxcomm.errors import ConfigError, ConfigWarning
from relaxcomm.system.warn import warn


def check_workers(settings: Config, world_size: int) -> None:
    """Refuse a number of workers that was written down and is not there.

    Raises: ConfigError.
    """
    if "workers" in settings.model_fields_set and settings.workers != world_size:
        raise ConfigError(
            f"workers is {settings.workers}, but this run has {world_size}; leave workers out, which "
            "`relaxcomm train` starts itself, or start as many: torchrun --nproc-per-node "
            f"{settings.workers}"
        )


def check_size(settings: Config, origin: Origin, world_size: int) -> None:
    """Refuse a topology, losses or a quorum that do not fit the number of workers, with their place.

    Raises: ConfigError, TopologyError.
    """
    with origin.told("topology"):
        settings.check_world_size(world_size)
    with origin.told("membership"):
        settings.check_losses(world_size)
    with origin.told("membership", "quorum"):
        check_quorum(settings, world_size)


def check_quorum(settings: Config, world_size: int) -> None:
    """Refuse a quorum that these workers cannot make up.

    Raises: ConfigError.
    """
    if settings.membership.quorum > world_size:
        raise ConfigError(
            f"membership.quorum is {settings.membership.quorum}, but this run has {world_size} worker"
            f"{'s' * (world_size != 1)}; give a number of workers without which it should end, or start more"
        )


def warn_of_unread(settings: Config) -> None:
    """Name the keys that have no effect in a script."""
    for said in _unread(settings):
        warn(said, ConfigWarning)


def _unread(settings: Config) -> Iterator[str]:
    task = {"task": settings.task, "data.micro_batch_size": settings.data.micro_batch_size}
    unread = [key for key, value in task.items() if value is not None]
    if unread:
        yield (
            f"{', '.join(unread)}: only `relaxcomm train` reads this; here the script's own model, data and "
            "batches count"
        )
    if settings.checkpoint is not None:
        yield (
            "checkpoint: only `relaxcomm train` reads this; a script calls relaxcomm.checkpoint.load(engine, "
            f"{settings.checkpoint.path!r}) after attach, and relaxcomm.checkpoint.save in its loop"
        )
    if settings.output is not None and settings.metrics is None:
        yield (
            f"output: {settings.output} stays empty: a script writes run logs there, and only with the key "
            "metrics (metrics: {})"
        )


def warn_of_idle_guard(settings: Config) -> None:
    """Say so where the drift guard would never compare anything."""
    if settings.drift_guard is None or any(one.makes_replicas_equal for one in settings.algorithms):
        return
    names = " and ".join(dict.fromkeys(one.name for one in settings.algorithms))
    warn(
        f"drift_guard has no effect: under {names} replicas are equal after no step, and nothing can be "
        "compared; leave it out",
        ConfigWarning,
    )


def batch_size_of(settings: Config, given: int | None) -> int:
    """A loader's batch size: as given, or as configured.

    Raises: ConfigError if they differ, or there is none.
    """
    configured = settings.data.batch_size
    if given is None:
        if configured is None:
            raise ConfigError(
                "engine.loader needs a batch_size: give it, or the key data.batch_size of the configuration"
            )
        return configured
    if configured is not None and given != configured:
        raise ConfigError(
            f"engine.loader has batch_size={given}, and data.batch_size of the configuration is "
            f"{configured}; leave one of them out"
        )
    return given

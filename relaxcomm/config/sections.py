"""The sections that need no room of their own: data, phases, checkpoints, membership, the drift guard."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, PlainSerializer, field_validator, model_validator

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.grammar import parse_algorithm, parse_primitive
from relaxcomm.data import Injection, Partition, iid
from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Count, PathText, Rate, Section
from relaxcomm.network.secret import LEAST_BYTES, Secret
from relaxcomm.system.files import read_private

ParsedAlgorithm: TypeAlias = Annotated[Algorithm, BeforeValidator(parse_algorithm)]


class DataConfig(Section):
    """How the training data are read.

    Args:
        batch_size: samples a worker and step; None for the task's own.
        partition: how samples are shared out; `iid` shuffles them over all workers in every epoch.
        micro_batch_size: samples of a backward, at most, in `relaxcomm train`; the rest is accumulated.
        injection: samples that workers share with the others in each step, or None.
    """

    batch_size: Count | None = None
    partition: Annotated[
        Partition,
        BeforeValidator(partial(parse_primitive, "partition")),
        PlainSerializer(repr, return_type=str),
    ] = iid()
    injection: Injection | None = None
    micro_batch_size: Count | None = None

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

    every_steps: Count = 100
    policy: Literal["error", "warn", "average"] = "error"


class CheckpointConfig(Section):
    """When `relaxcomm train` saves what it needs to go on, and from where it goes on when it starts.

    Args:
        path: a folder that all ranks see; a run that finds a checkpoint there goes on from it.
        every_steps: optimizer steps from one checkpoint to the next, or None.
        every_seconds: seconds from one to the next, nearly, or None; just one of the two.
        keep: how many checkpoints stay.
    """

    path: PathText
    every_steps: Count | None = None
    every_seconds: Rate | None = None
    keep: Count = 2

    @model_validator(mode="after")
    def _check_interval(self) -> CheckpointConfig:
        if (self.every_steps is None) == (self.every_seconds is None):
            raise ConfigError(
                f"checkpoint: every_steps is {self.every_steps} and every_seconds is {self.every_seconds}; "
                "give just one of them"
            )
        return self


class SecretConfig(Section):
    """Where each worker finds the secret that those who may join share; it stands in no configuration itself.

    Args:
        env: the name of an environment variable that holds it, or None.
        file: a file that holds it, which nobody but its owner may read, or None; just one of the two.
    """

    env: str | None = None
    file: PathText | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_text(cls, value: object) -> object:
        if not isinstance(value, dict | SecretConfig):  # it is not shown
            raise ConfigError(
                "membership.secret: a secret is not written into a configuration, which is copied into "
                "results and logs; name where it is: {env: NAME} or {file: PATH}"
            )
        return value

    @model_validator(mode="after")
    def _check_place(self) -> SecretConfig:
        if (self.env is None) == (self.file is None):
            raise ConfigError("membership.secret: give just one of env and file, where the secret is")
        return self

    def read(self) -> Secret:
        """The secret.

        Raises: ConfigError if it is not there, too short, or can be read by others; it is not shown.
        """
        if self.file is not None:
            where, key = self.file, read_private(Path(self.file), "membership.secret").strip()
        else:
            where = f"the environment variable {self.env}"
            key = os.environ.get(self.env or "", "").strip().encode()
            if not key:
                raise ConfigError(
                    f"membership.secret: {where} is not set on this host; it takes {LEAST_BYTES} bytes or "
                    "more, such as what `openssl rand -hex 32` prints, the same on all hosts"
                )
        if len(key) < LEAST_BYTES:
            raise ConfigError(
                f"membership.secret: {where} holds {len(key)} bytes; it takes {LEAST_BYTES} or more, such as "
                "what `openssl rand -hex 32` prints"
            )
        return Secret(key)


class MembershipConfig(Section):
    """What becomes of a run that loses workers, and whether others may join it.

    Args:
        elastic: others go on without those that are lost, and more may join; else the run ends.
        quorum: the least number of workers that go on.
        grace_seconds: how long a worker that is late is waited for before the step is given up, in the place
            of timeout_seconds; and as long again before the others go on without it, since those who compute
            meanwhile hear of it only at their next exchange. One that comes later joins again.
        secret: where each worker finds the secret that all share; with None whoever reaches the store may
            join.

    Raises: ConfigError for a quorum or a grace period in a run that is not elastic.
    """

    elastic: bool = False
    quorum: Count = 1
    grace_seconds: Rate | None = None
    secret: SecretConfig | None = None

    @model_validator(mode="after")
    def _check_elastic(self) -> MembershipConfig:
        for key in ("quorum", "grace_seconds"):
            if key in self.model_fields_set and not self.elastic:
                raise ConfigError(f"membership.{key} is of elastic runs; set elastic: true, or leave it out")
        return self

    def read_secret(self) -> Secret | None:
        """The secret, if one is asked for.

        Raises: ConfigError if it cannot be read.
        """
        return None if self.secret is None else self.secret.read()


class Phase(Section):
    """An algorithm that takes over in the middle of a run.

    Args:
        after_steps: optimizer steps of the run after which it does.
        algorithm: as the key of that name.
        residuals: what becomes of what compressors have left to send: "carry" it over, or "drop" it.
    """

    after_steps: Count
    algorithm: ParsedAlgorithm
    residuals: Literal["carry", "drop"] = "carry"

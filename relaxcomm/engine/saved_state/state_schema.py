"""What the exported state of a rank looks like, whatever the algorithm: checked before any of it is used."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from torch import Tensor

from relaxcomm.errors import ConfigError
from relaxcomm.fields.allowed import in_words, part_of
from relaxcomm.fields.frozen import Index, Section
from relaxcomm.fields.validation import allowed, hint_at, shown
from relaxcomm.roles.planner import Measured

SCHEMA = 2
"""Counts up when the form of the state changes."""

T = TypeVar("T")


def _kept(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """A number as it was saved: a whole one stays an int, as for what a controller counts by it."""
    check(value)
    return value


Row: TypeAlias = Annotated[T, Field(strict=False)]
"""A tuple; a list of as many is one, too."""
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False), WrapValidator(_kept)]
Due: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=True), WrapValidator(_kept)]
Layout: TypeAlias = list[list[str]]
Round: TypeAlias = Annotated[int, Field(ge=0, lt=2**62)]  # it goes on, in messages of 64 bits
StridesOf: TypeAlias = Row[tuple[Index, ...]] | None
SlotsOfRoles: TypeAlias = dict[str, dict[str, Tensor]]


class Part(Section):
    """A part of a saved state."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Votes(Part):
    """Of the triggers on which the ranks vote: slots of each, and answers as (trigger, step, answer)."""

    slots: list[dict[str, Tensor]]
    answers: list[Row[tuple[Index, int, bool]]]


class Counts(Part):
    """The statistics."""

    steps: Index
    synchronisations: Index
    samples: Index
    bytes_sent: Index
    bytes_received: Index
    bytes_uncompressed: Index
    evaluation_bytes_sent: Index
    evaluation_bytes_received: Index
    exposed_communication_seconds: Finite
    hidden_communication_seconds: Finite
    bytes_by_rule: dict[str, Row[tuple[Index, Index]]]


ReadTo: TypeAlias = Row[tuple[Index, Index, Index]]
"""Samples and batches that a rank has read, and how many samples were dealt out together."""


class Data(Part):
    """How far a data set was read; epochs are counted with those of data like it, before its first one."""

    kind: Row[tuple[str, Index]]
    epoch: Index
    first: Index
    place: ReadTo
    dealt: list[Row[tuple[Index, list[Annotated[list[ReadTo], Field(min_length=1)]]]]]
    is_over: bool
    in_round: bool
    anew: bool

    @field_validator("dealt")
    @classmethod
    def _check_dealt(cls, value: list[tuple[int, list[list[tuple[int, int, int]]]]]) -> Any:
        if not all(
            any(samples and unit for samples, _, unit in places) for _, kept in value for places in kept
        ):
            raise ValueError("samples were dealt out, but not how many together")
        return value


LateGradient: TypeAlias = Row[tuple[Due, Index, Index, Tensor, Index, Index]]
LateParameters: TypeAlias = Row[tuple[Due, Index, bool, Index, Tensor, Tensor, Index, Index]]
"""What is late ends with a round and samples, see `Context`."""

_MEASURED = TypeAdapter(Measured)


class EngineState(Part):
    """The state of one rank; keys are (rule, bucket), what is late is (due, rule, …, round, samples)."""

    schema_: int = Field(alias="schema")
    algorithm: str
    rank: Index
    world_size: Annotated[int, Field(ge=1)]
    step: Index
    layout: Layout | None
    strides: list[list[StridesOf]] | None
    slots: list[Row[tuple[Index, Index, SlotsOfRoles]]]
    rounds: list[Row[tuple[Index, Index, Round]]]
    samples: list[Row[tuple[Index, Index, Index]]]
    services: list[Row[tuple[Index, Index, dict[str, Tensor]]]]
    votes: Votes
    client_states: dict[Index, dict[str, dict[str, Any]]]
    values: dict[str, Finite]
    late_gradients: list[LateGradient]
    late_parameters: list[LateParameters]
    statistics: Counts
    phase: Index
    measured: Measured | None
    step_times: list[Row[tuple[Finite, Finite]]]
    loaders: list[Data]

    @field_validator("measured", mode="before")
    @classmethod
    def _make_measured(cls, value: object) -> object:
        return _MEASURED.validate_python(value) if isinstance(value, dict) else value

    def together(self, *, keeps_step: bool) -> dict[str, str]:
        """What all ranks' states must have in common."""
        common = {
            "algorithm": self.algorithm,
            "phase": str(self.phase),
            "measured": str(self.measured),
            "layout": str(self.layout),
        }
        return ({"step": str(self.step)} if keeps_step else {}) | common  # the step says more


def fault_of(error: ValidationError, part: type[Part]) -> str:
    """The first thing that is wrong, in a line: where, what is there, and what should be.

    Args:
        error: what was found.
        part: that was looked at.
    """
    fault, hint = error.errors(include_url=False)[0], part
    for place in fault["loc"]:
        is_part = isinstance(hint, type) and issubclass(hint, Part)
        hint = hint_at(hint, str(place)) if is_part else part_of(hint, place)
    where = ".".join(str(place) for place in fault["loc"] if "[" not in str(place))[:200]  # no kinds of types
    if fault["type"] == "missing":
        return f"{where} is missing"
    if fault["type"] == "extra_forbidden":
        return f"{where} is nothing that is saved"
    if "error" in fault.get("ctx", {}):  # of a check of ours
        return f"{where}: {allowed(fault, None)}"
    words, got = in_words(hint), " ".join(shown(fault["input"]).split())  # which may be a tensor
    return f"{where} is {got}, and {f'a run saves {words}' if words else allowed(fault, None)}"


def check_schema(state: Any) -> None:
    """Refuse what is no state, or of another form.

    Raises: ConfigError.
    """
    if not isinstance(state, dict):
        raise ConfigError(f"the saved engine state is a {type(state).__name__}; load what state_dict() gave")
    schema = state.get("schema")
    if not isinstance(schema, int) or schema != SCHEMA:
        raise ConfigError(
            f"the saved engine state has schema {str(schema)[:50]}, this run has {SCHEMA!r}; load "
            "one that this version has saved"
        )


def parse(state: Any) -> EngineState:
    """The state with types, sharing its tensors.

    Raises: ConfigError, naming the first part that no engine has saved.
    """
    check_schema(state)
    try:
        return EngineState.model_validate(state)
    except ValidationError as error:
        raise ConfigError(
            f"the saved engine state is damaged: {fault_of(error, EngineState)}; load another checkpoint"
        ) from None
    except RecursionError:
        raise ConfigError("the saved engine state is nested without end; load another checkpoint") from None

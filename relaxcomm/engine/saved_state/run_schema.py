"""What the saved state of a whole run looks like on one rank, but for the engine's own part."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from torch import Tensor

from relaxcomm.engine.saved_state.state_schema import Part, check_schema, fault_of
from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Index

_Word: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 32)]


class OptimizerState(Part):
    """An optimizer's state as torch's give it, by the indices of parameters; some add names and entries."""

    model_config = ConfigDict(extra="allow")

    state: dict[Index | str, Any]
    param_groups: list[dict[str, Any]]

    @field_validator("state")
    @classmethod
    def _check_state(cls, value: dict[int | str, Any]) -> dict[int | str, Any]:
        for index, held in value.items():
            if not isinstance(index, int):
                continue
            if not isinstance(held, dict) or not all(isinstance(name, str | int) for name in held):
                raise ValueError(f"of parameter {index} it needs a dict by names")
        return value

    @field_validator("param_groups")
    @classmethod
    def _check_params(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for group in value:
            params = group.get("params")
            if not isinstance(params, list) or not all(type(index) is int for index in params):
                raise ValueError("each group needs params, a list of whole numbers")
        return value


class RandomState(Part):
    """The generators of random numbers: of Python, NumPy (MT19937), PyTorch, and of the GPU."""

    python: tuple[int, Annotated[tuple[_Word, ...], Field(min_length=625, max_length=625)], float | None]
    numpy: tuple[
        Literal["MT19937"],
        Annotated[list[_Word], Field(min_length=624, max_length=624)],
        Annotated[int, Field(ge=0, le=624)],
        Annotated[int, Field(ge=0, le=1)],
        float,
    ]
    torch: Tensor
    cuda: Tensor | None

    @field_validator("python")
    @classmethod
    def _check_python(cls, value: Any) -> Any:
        version, words, _ = value
        if version != 3 or words[-1] > 624:
            raise ValueError("it is no state of Python's generator")
        return value

    @field_validator("torch")
    @classmethod
    def _check_torch(cls, value: Tensor) -> Tensor:
        here = torch.get_rng_state()
        if value.dtype != here.dtype or value.shape != here.shape or value.layout != here.layout:
            raise ValueError("it is no state of PyTorch's generator")
        torch.Generator().set_state(value)  # it looks at more
        return value


class RunState(Part):
    """All that a rank needs to go on; `state_schema` knows the engine's part.

    Args:
        optimizer_settings: names of those that each optimizer was made with.
        optimizer_parameters: names of the parameters of each group of each optimizer.
        scheduler_kinds: of what was given besides.
    """

    model: dict[str, Any]
    optimizers: list[OptimizerState]
    optimizer_settings: dict[Index, list[str]]
    optimizer_parameters: list[list[list[str]]]
    scaler: dict[str, float] | None
    engine: Any
    random: RandomState
    others: dict[str, dict[str, Any]]
    scheduler_kinds: dict[str, str]

    @field_validator("optimizer_parameters")
    @classmethod
    def _check_names(cls, value: list[list[list[str]]], info: ValidationInfo) -> list[list[list[str]]]:
        states = info.data.get("optimizers", [])  # not there where they are damaged, which is said first
        groups = [[len(group["params"]) for group in one.param_groups] for one in states]
        if [[len(names) for names in one] for one in value] != groups:
            raise ValueError(f"it needs names of the parameters in groups of {str(groups)[:200]}")
        return value


def parse_run(saved: Any) -> RunState:
    """The state with types, sharing its tensors.

    Raises: ConfigError, naming the first part that no run has saved.
    """
    if isinstance(saved, dict) and isinstance(engine := saved.get("engine"), dict):
        check_schema(engine)  # another one's parts may be others, too
    try:
        return RunState.model_validate(saved)
    except ValidationError as error:
        what = fault_of(error, RunState)
        raise ConfigError(f"the saved state is damaged: {what}; load another checkpoint") from None
    except RuntimeError:  # of torch's generator
        raise ConfigError("the saved state is damaged: random.torch; load another checkpoint") from None

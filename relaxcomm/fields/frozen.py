"""How primitives and rules are declared: frozen dataclasses whose arguments are checked when made."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cached_property
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from relaxcomm.errors import PluginError, RelaxcommError
from relaxcomm.fields.broken import or_broken
from relaxcomm.fields.looked_at import Looks, looked_at
from relaxcomm.fields.overridden import refuse_misfits
from relaxcomm.fields.validation import refusal
from relaxcomm.system.files import expanded

Steps: TypeAlias = Annotated[int, Field(ge=1)]
"""A positive number of optimizer steps."""

Count: TypeAlias = Annotated[int, Field(ge=1)]
"""A positive number of anything else."""

Rate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A positive, finite learning rate."""

Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
"""A number in [0, 1)."""

Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
"""A fraction in (0, 1]."""

Bits: TypeAlias = Annotated[int, Field(ge=1, le=8)]
"""Bits of a number, 1 to 8."""

Levels: TypeAlias = Annotated[int, Field(ge=1, le=127)]
"""Levels on either side of 0, 1 to 127."""

Threshold: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A bound, 0 or more."""

Index: TypeAlias = Annotated[int, Field(ge=0)]
"""A place in a list, from 0."""

PathText: TypeAlias = Annotated[str, AfterValidator(expanded)]
"""A path, in which ~ is the home folder."""


class Declared(ABC):
    """Base of all that is found by its name: primitives, topologies. Subclasses are made with `@frozen`."""

    role: ClassVar[str]

    declares: ClassVar[type[Any] | None] = None
    """The type of `facts`, which each class states itself, if its role has any."""

    looks: ClassVar[Looks] = {}
    """What looks at what a method returns, by its name; the class that states this is trusted itself."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for name, look in {} if "looks" in vars(cls) else cls.looks.items():
            owners = [one for one in cls.__mro__ if name in vars(one)]
            made = vars(owners[0])[name]
            is_property = any(isinstance(vars(one)[name], property) for one in owners)
            if is_property and not (hasattr(made, "__get__") or name in get_annotations(owners[0])):
                made = property(functools.partial(_given, made))
            if (owners[0] is cls or not issubclass(owners[0], Declared)) and hasattr(made, "__get__"):
                setattr(cls, name, looked_at(made, name, look, is_property=is_property))

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if "__dataclass_fields__" not in vars(cls):
            raise PluginError(
                f"{cls.__module__}.{cls.__name__} is not @frozen, so nobody has checked its facts and "
                f"arguments; write @frozen above class {cls.__name__}"
            )
        return super().__new__(cls)


def _given(value: Any, _: object) -> Any:
    """What a class states in the place of a property."""
    return value


C = TypeVar("C", bound=type)

_CHECKS = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True)


class Section(BaseModel):
    """A part of the configuration: frozen, strict, without unknown keys."""

    model_config = ConfigDict(frozen=True, **_CHECKS)


@dataclass_transform(frozen_default=True)
def frozen(cls: C) -> C:
    """Make `cls` a frozen dataclass whose constructor checks types and ranges.

    A primitive's class name is its name in YAML and in `repr`, so it is written in lower case.

    Raises: ConfigError from the constructor, naming the argument, what it got and what is allowed;
        PluginError for a class that does not state its own facts, or whose methods take other arguments
        than its role's.

    Example:
        >>> from relaxcomm.plugin import Steps, frozen
        >>> @frozen
        ... class warmup:
        ...     steps: Steps = 1
        >>> warmup(steps=3) == warmup(steps=3)
        True
        >>> warmup(steps=0)
        Traceback (most recent call last):
            ...
        relaxcomm.errors.ConfigError: warmup: steps = 0 is not allowed: write a whole number, 1 or more
    """
    try:
        if issubclass(cls, Declared):
            refuse_misfits(cls)
            if cls.declares is not None:
                _check_facts(cls, cls.declares)
        made: Any = dataclass(frozen=True, repr=False, config=_CHECKS)(cls)
    except Exception as error:
        return or_broken(cls, error)  # type: ignore[no-any-return]  # in place of it
    made.__init__ = _explained(made.__init__)
    if "__repr__" not in vars(cls):
        made.__repr__ = _without_defaults
    return made  # type: ignore[no-any-return]  # pydantic's decorator has no precise type for a TypeVar


@dataclass_transform(frozen_default=True, kw_only_default=True)
def stated(cls: C) -> C:
    """Make `cls` a frozen dataclass of facts, which are stated by name; its constructor checks their types.

    Example:
        >>> from relaxcomm.plugin import PlannerFacts
        >>> PlannerFacts(after_steps="long")
        Traceback (most recent call last):
            ...
        relaxcomm.errors.ConfigError: PlannerFacts: after_steps = 'long' is not allowed: write a whole number
    """
    made: Any = dataclass(frozen=True, kw_only=True, config=_CHECKS)(cls)
    made.__init__ = _explained(made.__init__)
    return made  # type: ignore[no-any-return]  # as above


def _check_facts(cls: type, kind: type[Any]) -> None:
    """Refuse a class without facts of its own: those of another class would be its own by accident."""
    own = vars(cls).get("facts")
    if isinstance(own, kind | property | cached_property):
        return
    found = "no facts" if own is None else f"{own!r} as its facts"
    every = ", ".join(f"{one.name}=…" for one in fields(kind))
    raise PluginError(
        f"{cls.__name__} declares {found}; none is inherited or has a default, so state each: "
        f"facts: ClassVar[{kind.__name__}] = {kind.__name__}({every}); or make it a cached_property, where "
        "facts follow from arguments, or from those of what it wraps (dataclasses.replace)"
    )


def _without_defaults(self: Any) -> str:
    shown = [(field, getattr(self, field.name)) for field in fields(self)]
    given = [f"{field.name}={value!r}" for field, value in shown if not is_default(field, value)]
    return f"{type(self).__name__}({', '.join(given)})"


def is_default(field: Any, value: object) -> bool:
    """Whether an argument of a dataclass has its default."""
    if field.default is not MISSING:
        return bool(value == field.default)
    return bool(field.default_factory is not MISSING and value == field.default_factory())


def _explained(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ValidationError as error:
            refusals = [fault["ctx"]["error"] for fault in error.errors() if fault["type"] == "value_error"]
            if refusals and isinstance(refusals[0], RelaxcommError):
                raise refusals[0] from None
            raise refusal(error, type(self).__name__, type(self)) from None

    return checked

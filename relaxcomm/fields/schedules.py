"""Numbers that change with the clock."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from pydantic import AfterValidator, Field

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Bits, Declared, Index, Share, frozen


@frozen
class piecewise(Declared):
    """A number that takes the next value at each given step.

    Args:
        values: one more than there are steps.
        steps: the steps, counted from the first in which the rule is active, at which the next value
            begins; ascending.

    Raises: ConfigError if the numbers of values and steps do not match, or the steps do not ascend.

    Example:
        >>> from relaxcomm.primitives import piecewise
        >>> density = piecewise(values=(0.25, 0.01), steps=(100,))
        >>> density.at(99), density.at(100)
        (0.25, 0.01)
    """

    values: Annotated[tuple[float, ...], Field(min_length=1)]
    steps: tuple[Index, ...]

    role: ClassVar[str] = "schedule"

    def __post_init__(self) -> None:
        if len(self.values) != len(self.steps) + 1 or list(self.steps) != sorted(set(self.steps)):
            raise ConfigError(
                f"piecewise needs ascending steps and one value more; got values={self.values} and "
                f"steps={self.steps}"
            )

    def at(self, step: int) -> float:
        """The value at a step."""
        return self.values[sum(step >= begin for begin in self.steps)]


def _checked_density(density: float | piecewise) -> float | piecewise:
    if isinstance(density, piecewise) and not all(0 < value <= 1 for value in density.values):
        raise ConfigError(f"a density is a fraction in (0, 1]; got {density!r}")
    return density


def _checked_bits(bits: int | piecewise) -> int | piecewise:
    if isinstance(bits, piecewise) and not all(value in range(1, 9) for value in bits.values):
        raise ConfigError(f"bits are whole numbers, 1 to 8; got {bits!r}")
    return bits


Density: TypeAlias = Annotated[Share | piecewise, AfterValidator(_checked_density)]
"""The fraction of entries that are sent, in (0, 1], or a schedule of it."""

ScheduledBits: TypeAlias = Annotated[Bits | piecewise, AfterValidator(_checked_bits)]
"""Bits of a number, 1 to 8, or a schedule of them."""


def value_at(number: float | piecewise, step: int) -> float:
    """The number at a step, counted from the rule's start."""
    return number.at(step) if isinstance(number, piecewise) else number


def largest(number: float | piecewise) -> float:
    """The largest that the number will ever be."""
    return max(number.values) if isinstance(number, piecewise) else number


def least(number: float | piecewise) -> float:
    """The least that the number will ever be."""
    return min(number.values) if isinstance(number, piecewise) else number

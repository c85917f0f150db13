"""What may be written for an argument, in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Interval
from pydantic import Field

from relaxcomm import Algorithm, ConfigError, Rule
from relaxcomm.fields.allowed import in_words, part_of
from relaxcomm.fields.frozen import Count, Fraction, Index, Rate
from relaxcomm.fields.names import Names
from relaxcomm.fields.schedules import ScheduledBits
from relaxcomm.plugin import Compressor, Density, Outer, frozen
from relaxcomm.primitives import all_reduce, gradients


class Policy(Enum):
    first = "first"
    second = "second"


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Rate, "a finite number above 0"),
        (Fraction, "a number, 0 or more, and below 1"),
        (Annotated[int, Field(gt=0, lt=10)], "a whole number, 1 to 9"),
        (Annotated[int, Field(le=3)], "a whole number, 3 at most"),
        (Annotated[float, Field(ge=0, le=1)], "a number, 0 to 1"),
        (Literal[8] | None, "8"),
        (Literal["any", "all"] | bool, "'any' or 'all', or true or false"),
        (
            Density,
            "a number above 0, and 1 at most, or a schedule of it: {piecewise: {values: […], steps: […]}}",
        ),
        (Compressor | None, "a compressor"),
        (Outer, "an outer optimizer"),
        (Annotated[str, Field(min_length=1, max_length=9)], "text of 1 to 9 characters"),
        (tuple[Rule, ...], "a list (in Python a tuple), each item a Rule"),
        (Annotated[list[str], Field(min_length=2)], "a list of 2 or more, each item text"),
        (tuple[Count, float], "a list of 2 (in Python a tuple): a whole number, 1 or more, then a number"),
        (Names, "text, or a list of 1 or more (in Python a tuple), each item text"),
        (Mapping[str, int], "a mapping, each value a whole number"),
        (
            dict[int, str | None],
            "a mapping, each key a whole number, each value text, or null (in Python None)",
        ),
        (dict, "a mapping"),
        (
            tuple[int, Count | None],
            "a list of 2 (in Python a tuple): a whole number, then a whole number, 1 or more, or null "
            "(in Python None)",
        ),
        (Annotated[int, Interval(ge=1, le=3)], "a whole number, 1 to 3"),
        (Annotated[int | None, Field(ge=1)], "a whole number, 1 or more"),
        (Annotated[int | float, Field(gt=0)], "a whole number, 1 or more, or a number above 0"),
        (Policy, "Policy.first or Policy.second"),
        (Annotated[int, Field(multiple_of=8)], ""),
        (Annotated[str, Field(pattern="a+")], ""),
        (Annotated[str, Field(min_length=1, max_length=9)] | None, "text of 1 to 9 characters"),
        (Annotated[str, Field(min_length=1)], "text of 1 or more characters"),
        (Callable[[int], int], "a Callable"),
        (Any, ""),
    ],
)
def test_types_in_words(hint: Any, words: str):
    assert in_words(hint) == words


@pytest.mark.parametrize(
    ("hint", "place", "part"),
    [
        (Sequence[int], 3, int),
        (Annotated[tuple[str, ...] | int, "note"], 3, str),
        (tuple[int, str], 0, int),
        (tuple[int, str], 1, str),
        (tuple[int, str], 2, None),
        (dict[str, float], "a", float),
        (dict[str, float], "[key]", str),
        (list[int], "a", None),
        (int, 0, None),
    ],
)
def test_the_type_of_what_is_held(hint: Any, place: int | str, part: Any):
    assert part_of(hint, place) is part


@frozen
class probe:
    """With arguments of all kinds."""

    steps: Count = 1
    sizes: Count | tuple[Count, ...] = 1
    even: Annotated[int, Field(multiple_of=2)] = 2
    again: Count = 1
    span: tuple[Index, Index | None] = (0, None)
    pairs: tuple[tuple[int, str], ...] = ()
    shares: dict[str, int] = field(default_factory=dict)
    several: int | dict[str, list[int]] = 1
    bits: ScheduledBits = 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"steps": "16"},
            ["probe: steps = '16' is not allowed: write a whole number, 1 or more, without quotes"],
        ),
        ({"steps": 1e3}, ["probe: steps = 1000.0 is not allowed: write a whole number, 1 or more: 1000"]),
        (
            {"sizes": (4, "a", 0)},
            ["sizes.1 = 'a' is not allowed: write a whole", "sizes.2 = 0 is not allowed: write a"],
        ),
        ({"even": 3}, ["probe: even = 3 is not allowed: it must be a multiple of 2"]),
        ({"step": 3}, ["probe has no parameter 'step'; did you mean 'steps'? it takes: steps=1, sizes=1"]),
        ({"steps": 0, "again": -1}, ["steps = 0", "again = -1"]),
        (
            {"span": (100,)},
            ["probe: span = (100,) is not allowed: write a list of 2 (in Python a tuple): a whole"],
        ),
        ({"pairs": ((1, "a"), ("x", "b"))}, ["probe: pairs.1.0 = 'x' is not allowed: write a whole number"]),
        ({"pairs": ((1,),)}, ["probe: pairs.0 = (1,) is not allowed: write a list of 2"]),
        ({"shares": {"a": "b"}}, ["probe: shares.a = 'b' is not allowed: write a whole number"]),
        ({"shares": {1: 2}}, ["probe: a key of shares = 1 is not allowed: write text"]),
        ({"several": {"a": ["b"]}}, ["probe: several.a.0 = 'b' is not allowed: write a whole number"]),
        (
            {"several": "a"},
            ["several = 'a' is not allowed: write a whole number, or a mapping, each value a list"],
        ),
    ],
)
def test_a_line_for_each_fault_and_none_of_pydantics_words(arguments: Any, says: list[str]):
    with pytest.raises(ConfigError) as got:
        probe(**arguments)
    lines = str(got.value).splitlines()
    assert len(lines) == len(says)
    for line, said in zip(lines, says, strict=True):
        assert said in line
        assert "nput" not in line


SCHEDULE = ", or a schedule of it: {piecewise: {values: […], steps: […]}}"


@pytest.mark.parametrize(
    ("name", "value", "to_do"),
    [
        ("steps", 8.0, "1 or more: 8"),
        ("steps", 0.0, "1 or more"),
        ("steps", 1e30, "1 or more"),
        ("steps", True, "1 or more"),
        ("steps", np.int64(8), "1 or more: int(np.int64(8))"),
        ("steps", np.int64(0), "1 or more"),
        ("bits", 4.0, f"1 to 8: 4{SCHEDULE}"),
        ("bits", 16.0, f"1 to 8{SCHEDULE}"),
        ("bits", "4", f"1 to 8, without quotes{SCHEDULE}"),
        ("bits", "4,5", f"1 to 8{SCHEDULE}"),
    ],
)
def test_what_is_offered_in_its_place_is_allowed(name: str, value: Any, to_do: str):
    with pytest.raises(ConfigError) as got:
        probe(**{name: value})
    assert str(got.value) == f"probe: {name} = {value!r} is not allowed: write a whole number, {to_do}"


def test_what_is_missing_may_only_be_mistyped():
    @frozen
    class needy:
        """With an argument that has no default."""

        steps: Count

    with pytest.raises(ConfigError) as got:
        needy(stepz=3)  # type: ignore[call-arg]  # on purpose
    assert str(got.value) == "needy has no parameter 'stepz'; did you mean 'steps'? it takes: steps"


def test_a_default_that_is_made_is_shown():
    with pytest.raises(ConfigError, match=r"Rule needs 'payload', 'exchange'; .* trigger=every_step\(\), "):
        Rule()


@pytest.mark.parametrize("name", ["x\n", "", "y" * 101, 3])
def test_a_name_that_is_none_is_told_in_words(name):
    rule = Rule(payload=gradients(), exchange=all_reduce())
    with pytest.raises(ConfigError) as refused:
        Algorithm((rule,), name=name)
    allowed = "write text of 1 to 100 characters, without line breaks and other control characters"
    assert str(refused.value) == f"Algorithm: name = {name!r} is not allowed: {allowed}"

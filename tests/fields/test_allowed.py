"""What may be written for an argument, in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from relaxcomm import ConfigError, Rule
from relaxcomm.fields.allowed import in_words, part_of
from relaxcomm.fields.frozen import Count, Fraction, Rate
from relaxcomm.fields.names import Names
from relaxcomm.plugin import Compressor, Density, Outer, frozen


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
        (tuple[Rule, ...], "a list (in Python a tuple), each item a Rule"),
        (Annotated[list[str], Field(min_length=2)], "a list of 2 or more, each item text"),
        (tuple[Count, float], "a list of 2 (in Python a tuple): a whole number, 1 or more, then a number"),
        (Names, "text, or a list of 1 or more (in Python a tuple), each item text"),
        (Mapping[str, int], "a mapping"),
        (Annotated[int, Field(multiple_of=8)], ""),
        (Annotated[str, Field(pattern="a+")], ""),
        (Callable[[int], int], "a Callable"),
        (Any, ""),
    ],
)
def test_types_in_words(hint: Any, words: str):
    assert in_words(hint) == words


@pytest.mark.parametrize(
    ("hint", "part"),
    [
        (Sequence[int], int),
        (Annotated[tuple[str, ...] | int, "note"], str),
        (dict[str, float], float),
        (int, None),
    ],
)
def test_the_type_of_what_is_held(hint: Any, part: Any):
    assert part_of(hint) is part


@frozen
class probe:
    """With arguments of all kinds."""

    steps: Count = 1
    sizes: Count | tuple[Count, ...] = 1
    even: Annotated[int, Field(multiple_of=2)] = 2
    again: Count = 1


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


def test_what_is_missing_may_only_be_mistyped():
    @frozen
    class needy:
        """With an argument that has no default."""

        steps: Count

    with pytest.raises(ConfigError) as got:
        needy(stepz=3)  # type: ignore[call-arg]  # on purpose
    assert str(got.value) == "needy has no parameter 'stepz'; did you mean 'steps'? it takes: steps"


def test_a_default_that_is_made_is_shown():
    with pytest.raises(ConfigError, match=r"Rule needs 'payload'; .* trigger=every_step\(\), "):
        Rule()

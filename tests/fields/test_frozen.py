"""What a declared class checks of its arguments."""

from typing import Any

import pytest

from relaxcomm import ConfigError, PluginError
from relaxcomm.fields.frozen import Section
from relaxcomm.plugin import Agreement, Share, Steps, frozen
from relaxcomm.primitives import error_feedback, identity, top_k


@pytest.mark.parametrize(
    ("kind", "default", "said"),
    [
        (Steps, 0, "own: value = 0 is not allowed: write a whole number, 1 or more"),
        (Share, 3.0, "own: value = 3.0 is not allowed: write a number above 0, and 1 at most"),
        (Agreement, "most", "own: value = 'most' is not allowed"),
    ],
)
def test_a_default_is_held_to_what_an_argument_is(kind: Any, default: Any, said: str):
    @frozen
    class own:
        """With a default that nobody may give."""

        value: kind = default

    with pytest.raises(ConfigError) as got:
        own()
    assert said in str(got.value)
    if kind is Steps:
        assert own(value=2).value == 2


def test_a_class_that_is_not_frozen_cannot_be_made():
    class mine(identity):
        """Would have the facts of another class by accident."""

    with pytest.raises(PluginError, match="write @frozen above class mine"):
        mine()


@pytest.mark.parametrize(
    ("got", "hint"),
    [
        (lambda cx, tensor: tensor, "write a class, with @frozen above it"),
        (identity, r"make one: identity\(…\)"),
        ("identity", r"make one: identity\(…\)"),
    ],
)
def test_what_is_no_object_of_the_role_is_told_what_to_do(got, hint):
    with pytest.raises(ConfigError, match=f"write a compressor; {hint}"):
        error_feedback(got)


@pytest.mark.parametrize("density", [2, 0, "1%", True, [0.1, 0.01]])
def test_a_number_that_may_be_a_schedule_is_told_what_may_stand_there(density):
    allowed = "write a number above 0, and 1 at most, or a schedule of it"
    with pytest.raises(ConfigError, match=f"is not allowed: {allowed}: {{piecewise: "):
        top_k(density=density)


def test_a_section_holds_its_defaults_to_it_too():
    class own(Section):
        steps: Steps = 0

    with pytest.raises(ValueError, match="greater than or equal to 1"):
        own()

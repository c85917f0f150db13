"""What a declared class checks of its arguments."""

from typing import Any

import pytest

from relaxcomm import ConfigError
from relaxcomm.fields.frozen import Section
from relaxcomm.plugin import Agreement, Share, Steps, frozen


@pytest.mark.parametrize(
    ("kind", "default", "said"),
    [
        (Steps, 0, "own: value = 0 is not allowed: Input should be greater than or equal to 1"),
        (Share, 3.0, "own: value = 3.0 is not allowed: Input should be less than or equal to 1"),
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


def test_a_section_holds_its_defaults_to_it_too():
    class own(Section):
        steps: Steps = 0

    with pytest.raises(ValueError, match="greater than or equal to 1"):
        own()

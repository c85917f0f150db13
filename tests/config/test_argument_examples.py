"""Required arguments that nobody gives are taken from the docstring's example."""

import pytest

from relaxcomm import Algorithm, ConfigError
from relaxcomm.config.examples import from_example
from relaxcomm.plugin import Rate, Steps


def named(steps: Steps, lr: Rate) -> Algorithm:
    """An algorithm.

    Args:
        steps: of it.
        lr: of it.

    Example:
        >>> named(steps=4, lr=0.5).name
        'named'
    """
    raise AssertionError("it is not called")


def by_place(steps: Steps, lr: Rate) -> Algorithm:
    """An algorithm.

    Args:
        steps: of it.
        lr: of it.

    Example:
        >>> by_place(4, 0.5).name
        'by_place'
    """
    raise AssertionError("it is not called")


def test_what_is_missing_is_taken_from_the_example():
    assert from_example("named", named, {"lr": 1.0}) == {"steps": 4}


def test_an_example_that_gives_arguments_by_place_is_told_how():
    with pytest.raises(ConfigError, match=r"let the docstring's Example call by_place\(steps=…, lr=…\)$"):
        from_example("by_place", by_place, {})

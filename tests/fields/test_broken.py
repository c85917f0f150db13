"""A broken class of a plug-in leaves the rest usable, and tells whoever uses it why."""

import pytest

from relaxcomm.errors import PluginError
from relaxcomm.fields.broken import broken_kept, or_broken


class Trigger:
    """What cannot be made."""


ERRORS = {
    "it lacks fires": PluginError("it lacks fires"),
    "ValueError: of the user": ValueError("of the user"),
}


def derive(broken):
    class Derived(broken):
        pass


USES = {
    "call": lambda broken: broken(steps=3),
    "derive": derive,
    "look": lambda broken: broken.facts,
    "hint": lambda broken: broken | None,
    "isinstance": lambda broken: isinstance(3, broken),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("reason", ERRORS)
def test_whoever_uses_it_is_told_why(use, reason):
    error = ERRORS[reason]
    with broken_kept():
        broken = or_broken(Trigger, error)
    with pytest.raises(PluginError, match=f"^Trigger of {__name__} cannot be used: {reason}$") as raised:
        USES[use](broken)
    assert raised.value.__cause__ is error
    refusal = broken.why()
    assert (str(refusal), refusal.__cause__) == (reason, error)
    assert not hasattr(broken, "__dataclass_fields__")


def test_what_is_broken_outside_of_a_package_that_is_looked_for_raises_its_error():
    with pytest.raises(KeyError), broken_kept():
        {}.popitem()
    with pytest.raises(PluginError, match="it lacks fires"):
        or_broken(Trigger, ERRORS["it lacks fires"])

"""Methods that a plug-in writes take what its role gives them."""

from typing import ClassVar

import pytest

from relaxcomm.errors import PluginError
from relaxcomm.plugin import Compressor, CompressorFacts, Dense, frozen
from relaxcomm.primitives import identity


def compressor(**methods):
    """A class of a compressor with the given methods."""
    own = {
        "__annotations__": {"facts": ClassVar[CompressorFacts]},
        "__module__": "foreign",
        "facts": identity.facts,
    }
    return type("mine", (Compressor,), own | methods)


def encode(self, cx, tensor, state):
    yield Dense(tensor)


@pytest.mark.parametrize(
    ("methods", "remedy"),
    [
        (
            {"init": lambda self, cx, tensor: {}},
            r"mine\.init\(self, cx, tensor\).*; write def init\(self, bucket\)$",
        ),
        ({"init": lambda: {}}, r"write def init\(self, bucket\)$"),
        ({"encode_decode": encode}, r"write def encode_decode\(self, cx, tensor, state, \*, keep_sent\)$"),
    ],
)
def test_other_arguments_than_the_roles_are_refused_where_the_class_is_made(methods, remedy):
    with pytest.raises(PluginError, match=remedy):
        frozen(compressor(**methods))


@pytest.mark.parametrize("init", [lambda self, one, more=0: {}, lambda *given: {}])
def test_names_and_further_defaults_are_free(init):
    frozen(compressor(init=init))


def test_what_a_plug_in_adds_may_change_from_class_to_class():
    base = compressor(part=lambda self, one: one)
    own = {"facts": base.facts, "__annotations__": {}, "__module__": "foreign"}
    frozen(type("wider", (base,), own | {"part": lambda self, one, two: one}))

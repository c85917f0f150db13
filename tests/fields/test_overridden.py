"""Methods that a plug-in writes take what its role gives them."""

import math
from typing import ClassVar

import pytest

from relaxcomm.errors import PluginError
from relaxcomm.plugin import DENSE, Compressor, CompressorFacts, Dense, frozen


def compressor(**methods):
    """A class of a compressor with the given methods."""
    facts = CompressorFacts(
        kinds=frozenset({DENSE}),
        rounds=1,
        scope="entry",
        linear=True,
        unbiased=True,
        clip=math.inf,
        max_norm=math.inf,
        memory="none",
        follows_results=False,
        follows_clock=False,
        keeps_finite=True,
        slots={},
        most_entries=math.inf,
    )
    own = {"__annotations__": {"facts": ClassVar[CompressorFacts]}, "__module__": "foreign", "facts": facts}
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

"""The contract suite over everything that is bundled, as third parties run it on theirs."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import networkx as nx
import pytest

import relaxcomm
from relaxcomm.checks import suite
from relaxcomm.config import registry
from tests.checkpoint.test_saving import NEEDED

NAMES = sorted(
    {*registry.algorithms(), *(name for found in registry.primitives().values() for name in found)}
)
# Where the docstring's example, or a default, is for larger models than the suite's.
PARAMETERS = {
    "gaussiank_sgd": {"density": 0.05},
    "gaussian_k": {"density": 0.05},
}


def names_in(part: object) -> Iterator[str]:
    """The classes of an algorithm, a rule or a primitive, and of all that it is made of."""
    if is_dataclass(part):
        yield type(part).__name__
        part = tuple(getattr(part, field.name) for field in fields(part))
    for inner in part if isinstance(part, tuple) else ():
        yield from names_in(inner)


PARTS = {
    part
    for name, build in registry.algorithms().items()
    for part in names_in(build(**NEEDED.get(name, {})))
    if part in NAMES
}
"""Primitives of bundled algorithms, in which they train."""


@pytest.fixture(autouse=True)
def sites(tmp_path, monkeypatch):
    """The file that an example of a topology names."""
    nx.write_edgelist(nx.complete_graph(3), tmp_path / "sites.edgelist")
    monkeypatch.chdir(tmp_path)


TRAINED = set()


@pytest.mark.every_other("name", of=4)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "whole"])
@pytest.mark.parametrize("name", NAMES)
def test_bundled(name, whole, monkeypatch):
    """Names that come to the same rules, such as `every` and `local_sgd`, train once.

    That algorithms go on from a checkpoint is looked at bit for bit in tests/golden.
    """
    checks = suite.algorithm_checks

    def chosen(algorithm):
        what = (whole, algorithm.rules, algorithm.controllers)
        is_around = algorithm.name == "around"
        if what in TRAINED or (is_around and name in PARTS and not whole):
            return {}
        TRAINED.add(what)
        found = checks(algorithm)
        return found if whole or is_around else {key: run for key, run in found.items() if key != "state"}

    monkeypatch.setattr(suite, "algorithm_checks", chosen)
    findings = relaxcomm.check(name, **PARAMETERS.get(name, {}))
    assert len(findings) > 4
    assert [str(finding) for finding in findings if finding.fault] == []

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
    "adagrad": {"lr": 0.1},
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


@pytest.fixture(autouse=True, scope="module")
def trained_once():
    """Names that come to the same rules, such as `every` and `local_sgd`, train once."""
    trained, checks = set(), suite.algorithm_checks

    def first_only(algorithm):
        what = (algorithm.rules, algorithm.controllers)
        new = what not in trained
        trained.add(what)
        return checks(algorithm) if new else {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "algorithm_checks", first_only)
        yield


def check(name):
    findings = relaxcomm.check(name, **PARAMETERS.get(name, {}))
    assert len(findings) > 4
    assert [str(finding) for finding in findings if finding.fault] == []


@pytest.mark.parametrize("name", NAMES)
def test_bundled(name, monkeypatch):
    if name in PARTS:
        checks, simplest = suite.algorithm_checks, "around"  # what a primitive trains in otherwise
        monkeypatch.setattr(
            suite, "algorithm_checks", lambda one: {} if one.name == simplest else checks(one)
        )
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PARTS))
def test_parts_train_in_the_simplest_algorithm_too(name):
    check(name)

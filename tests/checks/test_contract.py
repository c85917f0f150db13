"""The contract suite over everything that is bundled, as third parties run it on theirs."""

import networkx as nx
import pytest

import relaxcomm
from relaxcomm.checks import suite
from relaxcomm.config import registry

NAMES = sorted(
    {*registry.algorithms(), *(name for found in registry.primitives().values() for name in found)}
)
# Where the docstring's example, or a default, is for larger models than the suite's.
PARAMETERS = {
    "gaussiank_sgd": {"density": 0.05},
    "gaussian_k": {"density": 0.05},
    "adagrad": {"lr": 0.1},
}


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


@pytest.mark.parametrize("name", NAMES)
def test_bundled(name):
    findings = relaxcomm.check(name, **PARAMETERS.get(name, {}))
    assert len(findings) > 4
    assert [str(finding) for finding in findings if finding.fault] == []

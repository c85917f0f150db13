"""The contract suite over everything that is bundled, as third parties run it on theirs."""

import networkx as nx
import pytest

import relaxcomm
from relaxcomm import registry

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
    graph = nx.relabel_nodes(nx.complete_graph(3), str)
    nx.write_graphml(graph, tmp_path / "sites.graphml")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_bundled(name):
    findings = relaxcomm.check(name, **PARAMETERS.get(name, {}))
    assert len(findings) > 4
    assert [str(finding) for finding in findings if finding.fault] == []

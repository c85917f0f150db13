"""`relaxcomm show --topology`: facts of a graph, what an algorithm sends over it, and its picture."""

import networkx as nx
import pytest
from typer.testing import CliRunner

from relaxcomm.cli import memory_needs
from relaxcomm.cli.app import app
from relaxcomm.cli.message_sizes import CountedFor
from relaxcomm.cli.topology_facts import _links, parse_topology
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner import footprint

pytest.importorskip("matplotlib")


@pytest.fixture
def show(tmp_path, monkeypatch):
    """Runs the command in an empty folder; the plain lines by their names."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, ["show", *arguments])
        assert done.exit_code == code, done.stderr
        return done.stderr if code else dict(line.split("  ", 1) for line in done.stdout.splitlines())

    return run


def test_what_an_algorithm_sends_over_it(show, tmp_path):
    arguments = ("--topology", "ring", "--workers", "5", "--parameters", "1000", "--output", "my.svg")
    shown = show("d_psgd", *arguments)
    assert shown["rule_0.sends"].endswith("on ring()")
    assert shown["rule_0.sends.5_workers"].startswith("8 kB an exchange")
    assert [path.name for path in tmp_path.iterdir()] == ["my.svg"]


def test_arguments_are_yaml_and_files_work(show, tmp_path):
    nx.write_graphml(nx.path_graph(3), tmp_path / "net.graphml")
    shown = show("--topology", "{file: {path: net.graphml}}", "--workers", "3")
    assert shown["links"] == "1 to 2 from each worker in an exchange, 1.33 on average"
    shown = show("--topology", "one_peer_exponential", "--workers", "6")
    assert (shown["links"], shown["period"]) == ("1 from each worker in an exchange", "3 exchanges")
    shown = show("--topology", "{hierarchical: {sizes: [2, 1]}}", "--workers", "3")
    assert shown["groups"] == "[0, 1], [2]"
    assert "picture" not in shown
    assert [path.name for path in tmp_path.iterdir()] == ["net.graphml"], "no picture that nobody asked for"


@pytest.mark.parametrize(
    ("name", "links"),
    {
        "ring": ("1", "2", "2", "2"),
        "exponential": ("1", "2", "2", "3"),
        "one_peer_exponential": ("1", "1", "1", "1"),
        "complete": ("1", "2", "3", "7"),
        "star": ("1", "1 to 2", "1 to 3", "1 to 7"),
        "{hierarchical: {sizes: 2}}": ("1", "1 to 2", "1 to 2", "1 to 4"),
    }.items(),
)
def test_to_how_many_others_each_worker_sends(name, links):
    graph = parse_topology(name)
    found = [
        _links(graph, workers).partition(" from each worker in an exchange")[0] for workers in (2, 3, 4, 8)
    ]
    assert found == [*links]


def test_very_many_workers_are_not_drawn(show, tmp_path):
    shown = show("d_psgd", "--topology", "ring", "--workers", "4096")
    assert shown["spectral_gap"] == "not computed for more than 512 workers"
    assert shown["memory.4096_workers"].endswith(
        "16.0 more while messages are under way; counted for 32 ranks"
    )
    assert "leave --output out" in show("--topology", "ring", "--workers", "65", "--output", "a.png", code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("graph", ["star", "{hierarchical: {sizes: 8}}", "complete"])
def test_memory_counted_for_some_ranks_is_that_of_all(graph, monkeypatch):
    """Also where one rank, or each group's first, has more neighbours than the others."""
    algorithm, model, found = parse_algorithm("d_psgd"), CountedFor.matrix(1000), []
    for most in (32, 200):
        monkeypatch.setattr(footprint, "_MOST_RANKS", most)
        (said,) = memory_needs.memory_node(algorithm, model, (200,), parse_topology(graph)).children
        found.append(float(said.text.split(" more")[0].split()[-1]))
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_the_topologies_that_an_algorithm_can_use_are_listed(show):
    assert show("bsp")["topologies"] == "complete"
    assert show("hierarchical_local_sgd")["topologies"] == "hierarchical"
    assert {"ring", "complete", "file", "random_regular"} <= set(show("d_psgd")["topologies"].split(", "))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bsp", "--topology", "ring"], "cannot use topology ring(); it can use complete"),
        (["--topology", "rings"], "did you mean 'ring'"),
        (["--topology", "{ring"], ": not YAML: line 1, column 6: expected"),
        (["--topology", "hypercube", "--workers", "6"], "power of two, got 6"),
        (["--topology", "ring", "--output", "no/where"], "name a file that ends in .png"),
        (["--topology", "ring", "--output", "/proc/x.png"], "--output: cannot write to the folder /proc"),
        (
            ["local_sgd", "--output", "ring.png"],
            "--output ring.png is of a topology's picture; add --topology",
        ),
        (["--topology", "random_pairs", "--set", "rounds=3"], "--set 'rounds=3' gives a parameter of NAME"),
        ([], "needs the NAME of an algorithm"),
    ],
)
def test_bad_input(show, tmp_path, arguments, says):
    assert says in show(*arguments, code=2)
    assert list(tmp_path.iterdir()) == []

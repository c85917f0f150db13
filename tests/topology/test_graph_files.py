"""Files of graphs may come from anywhere: what is wrong or hostile is refused, and soon."""

import networkx
import pytest

from relaxcomm import TopologyError, from_networkx
from relaxcomm.primitives import file

GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    '<key id="d" for="edge" attr.name="{name}" attr.type="double"/><graph edgedefault="undirected">'
    '<node id="n0"/><node id="n1"/><node id="n2"/>'
    '<edge source="n0" target="n1"><data key="d">{value}</data></edge><edge source="n1" target="n2"/>{more}'
    "</graph></graphml>"
)
LAUGHS = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 9))
ENTITIES = f'<!DOCTYPE graphml [<!ENTITY e0 "{"x" * 100}">{LAUGHS}]>'


def graphml(name="bandwidth", value="1e8", more=""):
    return GRAPHML.format(name=name, value=value, more=more)


@pytest.mark.parametrize(
    ("ending", "text", "says"),
    [
        ("graphml", ENTITIES + graphml(value="&e8;"), "a document type may define entities"),
        ("graphml", '<!DOCTYPE graphml SYSTEM "file:///etc/passwd">' + graphml(), "a document type may"),
        ("graphml", "<a>" * 100_000, "elements lie more than 16 deep in each other; GraphML needs 4"),
        (
            "graphml",
            graphml(value="nan"),
            "the bandwidth of the link 'n0' to 'n1' is nan; give a number of bytes",
        ),
        ("graphml", graphml(value="-1"), "bandwidth of the link 'n0' to 'n1' is -1.0; give"),
        (
            "graphml",
            graphml(name="weight", value="INF"),
            "the 'weight' of the link 'n0' to 'n1' is inf; give a fin",
        ),
        (
            "graphml",
            graphml(more='<edge source="n1" target="n0"/>'),
            "'n0' and 'n1' are linked twice; keep one",
        ),
        ("graphml", graphml(more='<edge source="n1" target="n7"/>'), "but 3 workers are the nodes"),
        ("graphml", graphml(more="<hyperedge/>"), "hyperedge"),
        ("graphml", "", "is not a graph: ParseError"),
        ("edgelist", "0 1\n1 2\n1 0\n", "linked twice; keep one of the links"),
        ("edgelist", "0 1\n2\n", "line 2 names one node: '2'; write two, such as 0 1"),
        ("edgelist", "0 1 " + "-" * 50_000 + "1", "line 1 has 50,005 characters; 4,096 are allowed"),
        ("edgelist", '0 1 {"latency": -1}\n1 2', "the latency of the link"),
        ("edgelist", '0 1 {"latency": 1e999}\n1 2', "give a number of seconds"),
        ("edgelist", '0 1 {"cost": 1e999}\n1 2', "the 'cost' of the link '0' to '1' is inf; give a finite"),
        ("edgelist", "0 0\n", "node '0' is linked with itself"),
        ("edgelist", "0 3_0\n", "node '3_0' is not a rank"),
        ("edgelist", "0 -1\n", "node '-1' is not a rank"),
        ("edgelist", "0 ٣\n", "is not a rank; name the nodes 0 to N - 1"),
        ("edgelist", "0 " + "x" * 4_000, "is not a rank"),
        ("edgelist", "0 1\n1 2\n3 4\n", "but 3 workers are the nodes"),
        ("gml", "", "a topology file ends in .edgelist, .edges, .graphml"),
    ],
)
def test_what_is_refused(tmp_path, ending, text, says):
    path = tmp_path / f"sites.{ending}"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError) as caught:
        file(path=str(path)).check(3)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2_000


def test_a_graph_without_end_is_not_read(tmp_path):
    (tmp_path / "zero.graphml").symlink_to("/dev/zero")
    with pytest.raises(TopologyError, match=r"zero\.graphml has more than 16,777,216 bytes"):
        file(path=str(tmp_path / "zero.graphml")).check(3)


def test_comments_and_directions_are_read(tmp_path):
    (tmp_path / "a.edges").write_text("# sites\n\n0 1 # the first\n1 2\n")
    assert file(path=str(tmp_path / "a.edges")).listeners(rank=1, world_size=3) == [0, 2]
    both = graphml(more='<edge source="n1" target="n0"/>').replace("undirected", "directed")
    (tmp_path / "a.graphml").write_text(both)
    assert file(path=str(tmp_path / "a.graphml")).listeners(rank=1, world_size=3) == [0, 2]


def test_a_number_that_no_float_holds():
    graph = networkx.Graph()
    graph.add_edge(0, 1, bandwidth=10**400)
    with pytest.raises(TopologyError, match="the bandwidth of the link 0 to 1 is a number of 1,329 bits"):
        from_networkx(graph)

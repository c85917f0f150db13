"""Graphs from files, which may come from anywhere: GraphML and edge lists."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import XMLParser

from relaxcomm.errors import ConfigError, TopologyError, worded
from relaxcomm.fields.validation import shown
from relaxcomm.system.files import expanded, read_at_most

_LARGEST_BYTES = 16_777_216
_LONGEST_LINE = 4_096
_DEEPEST = 16


def read_graph(path: str) -> Any:
    """The networkx graph in a file; one in which nodes are linked twice has both links.

    Raises: TopologyError for a file that cannot be read, or is no graph.
    """
    reader = _READERS.get(Path(path).suffix)
    if reader is None:
        raise TopologyError(f"{shown(path)}: a topology file ends in {', '.join(sorted(_READERS))}")
    try:
        return reader(read_at_most(Path(expanded(path)), _LARGEST_BYTES, "the topology"))
    except ConfigError as error:
        raise TopologyError(str(error)) from None
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None
    except Exception as error:  # networkx raises whatever its parsers do
        raise TopologyError(f"{path} is not a graph: {worded(error)}") from None


def _read_graphml(data: bytes) -> Any:
    import networkx as nx

    parser = XMLParser(target=_Bounds())
    parser.feed(data)
    parser.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # networkx warns of what it leaves out
        return nx.read_graphml(io.BytesIO(data))


class _Bounds:
    """Called while XML is parsed, before anything is built of it: no entities, no nesting without end."""

    def __init__(self) -> None:
        self._depth = 0

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise TopologyError("a document type may define entities, which no graph needs; remove <!DOCTYPE …>")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise TopologyError(f"elements lie more than {_DEEPEST} deep in each other; GraphML needs 4")

    def end(self, tag: str) -> None:
        self._depth -= 1


def _read_edge_list(data: bytes) -> Any:
    import networkx as nx

    lines = data.decode().splitlines()
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE:
            raise TopologyError(f"line {number} has {len(line):,} characters; {_LONGEST_LINE:,} are allowed")
        if len(line.partition("#")[0].split(maxsplit=1)) == 1:
            raise TopologyError(f"line {number} names one node: {shown(line)}; write two, such as 0 1")
    return nx.parse_edgelist(lines, create_using=nx.MultiGraph)


_READERS: Mapping[str, Callable[[bytes], Any]] = {
    ".graphml": _read_graphml,
    ".edgelist": _read_edge_list,
    ".edges": _read_edge_list,
}

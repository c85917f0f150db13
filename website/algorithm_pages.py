"""A page for each bundled algorithm: its docstring, rules and costs, advice, and what was measured."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from relaxcomm.cli.descriptions import algorithm_node
from relaxcomm.cli.message_sizes import CountedFor
from relaxcomm.cli.tree import Node
from relaxcomm.config import registry
from relaxcomm.config.examples import from_example
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.config.registry import Entry
from relaxcomm.fields import docstrings
from website import costs, measured
from website.families import FAMILIES

_ADVICE = Path(__file__).parents[1] / "docs/which-algorithm.md"
_ASKED = {
    "trigger": "when",
    "payload": "what",
    "compressor": "how encoded",
    "exchange": "over what",
    "delay": "how late",
    "outer": "what then",
    "select": "on which parameters",
    "active": "in which steps",
}


def pages() -> Iterator[tuple[str, str]]:
    """Each page's name and text, that of all algorithms first."""
    entries = registry.algorithms()
    yield "algorithms/README", _overview(entries[name] for names in FAMILIES.values() for name in names)
    for names in FAMILIES.values():
        yield from ((f"algorithms/{name}", page(entries[name])) for name in names)


def _overview(entries: Iterable[Entry]) -> str:
    summaries = {entry.name: entry.summary for entry in entries}
    parts = ["# Algorithms\n\n[Which one should I use?](../which-algorithm.md)\n", measured.scatter("")]
    for family, names in FAMILIES.items():
        rows = "\n".join(f"| [`{name}`]({name}.md) | {summaries[name]} |" for name in names)
        parts.append(f"## {family}\n\n| | |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def page(entry: Entry) -> str:
    """The page of an algorithm."""
    text = docstrings.read(entry.build)
    node = algorithm_node(entry, {}, CountedFor.matrix(1), ())
    built = parse_algorithm({"name": entry.name, **from_example(entry.name, entry.build, {})})
    parts = {one.name: one for one in node.children}
    rules = [one for name, one in parts.items() if name.startswith("rule ")]
    below = "\n\n".join(text.body)
    sections = [
        f"# {entry.name}\n\n{text.summary}\n\n{below}\n",
        "## Its rules\n\n" + "\n\n".join(drawn(rule) for rule in rules) + _others(node) + _meanings(rules),
        _parameters(parts["parameters"]),
        f"## What it costs\n\n{costs.table(built)}",
        _when(entry.name),
        measured.section(entry.name),
        f"## Example\n\n```pycon\n{text.example}\n```\n" if text.example else "",
        f"## Reference\n\n{text.reference}\n" if text.reference else "",
        f"**Differs from the reference:** {text.differs}\n" if text.differs else "",
    ]
    return "\n".join(one for one in sections if one)


def drawn(rule: Node) -> str:
    """A rule as a row of what it answers, which wraps on narrow screens."""
    boxes = [
        f'<div class="part"><span>{_ASKED[one.name]}</span><code>{html.escape(_said(one))}</code></div>'
        for one in rule.children
        if one.name in _ASKED and not (one.name == "delay" and one.text == "0 steps")
    ]
    return f'<div class="rule">{"".join(boxes)}</div>'


def _said(part: Node) -> str:
    return part.term or part.text


def _others(node: Node) -> str:
    found = [one for one in node.children if one.name.startswith(("controller", "planner"))]
    return "".join(f"\n\n{one.name.capitalize()}: `{one.term}`. {one.text}" for one in found) + "\n\n"


def _meanings(rules: Iterable[Node]) -> str:
    """What each primitive does, once."""
    said = {
        one.term: f"| {_ASKED[one.name]} | `{one.term}` | {one.text} |"
        for rule in rules
        for one in rule.children
        if one.name in _ASKED and one.term
    }
    return "\n".join(["| | | |", "|---|---|---|", *map(_escaped, said.values())]) + "\n"


def _escaped(row: str) -> str:
    """A row of a table whose code may hold bars."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("|", r"\|"), row)


def _parameters(node: Node) -> str:
    if not node.children:
        return "It has no parameters.\n"
    rows = []
    for one in node.children:
        default, _, meaning = one.text.partition("; ")
        rows.append(
            _escaped(f"| `{one.name}` | {one.term} | {default.removeprefix('default ')} | {meaning} |")
        )
    return "\n".join(["## Parameters\n", "| | type | default | |", "|---|---|---|---|", *rows, ""])


@cache
def _advice() -> tuple[list[list[str]], list[list[str]], list[str]]:
    """Of the page of advice: rows on when to begin with what, rows on what goes wrong, and points."""
    text = (
        _ADVICE.read_text(encoding="utf-8")
        .replace("](", "](../")
        .replace("](../#", "](../which-algorithm.md#")
    )
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line] for line in lines]
    points = re.findall(r"^- (.*(?:\n  .*)*)", text, flags=re.MULTILINE)
    return (
        [row for row in rows if len(row) == 3][1:],
        [row for row in rows if len(row) == 4],
        [" ".join(one.split()) for one in points],
    )


def _when(name: str) -> str:
    first, wrong, points = _advice()
    mark, before, lines = f"`{name}`", "", []
    for where, begin, why in first:
        where = where.replace("the same", before)
        before = before if where.startswith(before or "-") else where
        if mark in begin:
            takes = "an exchange takes " if re.match(r"(less|about|a few|many|hundreds)\b", where) else ""
            lines.append(f"- Where {takes}{where}: {why}.")
    lines += [f"- {one}" for one in points if mark in one]
    for names, when, seen, todo in wrong:
        if mark in names:
            lines.append(f"\nIt fails when {when}. You see: {seen}. What to do: {todo}.")
    said = "\n".join(lines)
    more = "[Which algorithm should I use?](../which-algorithm.md)"
    return f"## When to use it, and when not\n\n{said}\n\n{more}\n"

"""A tree of named facts: drawn on a terminal, one line a fact elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text
from rich.tree import Tree


@dataclass(frozen=True)
class Node:
    """A fact and what belongs to it.

    Args:
        name: one word or two; off a terminal they are joined.
        text: what is known, or "" for a name that only groups.
        children: facts below it.
        term: a short value that stands before `text`.
    """

    name: str
    text: str = ""
    children: tuple[Node, ...] = ()
    term: str = ""

    @property
    def said(self) -> str:
        """The value and the text."""
        return ": ".join(part for part in (self.term, self.text) if part)


def show(root: Node) -> None:
    """Print a tree on a terminal; elsewhere plain lines, the dotted name first, never wrapped."""
    console = Console()
    if console.is_terminal:
        console.print(_drawn(root))
        return
    print(f"{root.name}  {root.said}".rstrip())
    for child in root.children:
        for line in _lines(child, ""):
            print(line)


def _lines(node: Node, prefix: str) -> Iterator[str]:
    name = node.name.replace(" ", "_")
    if node.said:
        yield f"{prefix}{name}  {node.said}"
    for child in node.children:
        yield from _lines(child, f"{prefix}{name}.")


def _drawn(node: Node) -> Tree:
    label = Text(node.name, style="bold")
    if node.term:
        label.append(f"  {node.term}", style="not bold cyan")
    if node.text:
        label.append(f"  {node.text}", style="not bold")
    tree = Tree(label, guide_style="dim")
    for child in node.children:
        tree.children.append(_drawn(child))
    return tree

"""Rows are a table on a terminal that is wide enough, and plain lines elsewhere."""

from functools import partial

import pytest
from rich.console import Console

from relaxcomm.cli import rows


@pytest.mark.parametrize(("width", "tables"), [(80, 1), (60, 2), (40, 3)])
def test_rows_are_whole_whatever_the_terminal(width, tables, monkeypatch, capsys):
    terminal = partial(Console, force_terminal=True, color_system=None, width=width)
    monkeypatch.setattr(rows, "Console", terminal)
    cells = ["bsp", "1" * 20, "2" * 10, "3" * 20]
    rows.show_rows(["algorithm", "a", "b", "c"], [cells], title="over")
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "3" * 20 in shown
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("over") == 1
    assert shown.count("bsp") == shown.count("─ \n") == tables, "each has the names"


def test_a_cell_wider_than_the_terminal_is_whole(monkeypatch, capsys):
    monkeypatch.setattr(rows, "Console", partial(Console, force_terminal=True, color_system=None, width=30))
    rows.show_rows(["algorithm", "a", "b"], [["bsp", "1", "2" * 40]])
    rows.show_text("words [are] whole " + "3" * 20)
    shown = capsys.readouterr().out
    assert "2" * 40 in shown
    assert [line.strip() for line in shown.splitlines()[-2:]] == ["words [are] whole", "3" * 20]

"""The HTML report: what it says, and that it needs nothing outside itself."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from relaxcomm import config
from relaxcomm.cli import plot, report
from relaxcomm.cli.pictures import new_figure
from relaxcomm.cli.train import provenance
from relaxcomm.training.results import Point, Result
from tests.cli.test_cli_compare import result

LOADED = config.load({"algorithm": "bsp", "task": "digits"})


class _Page(HTMLParser):
    """Tags, and the cells of the table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[tuple[str, bool]] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open = tag

    def handle_data(self, data):
        if self._open == "td" and data.strip():
            self.cells.append((data, self.tags[-1][1].get("class") == "best"))


def make(*results: Result) -> str:
    return report.make(results, provenance(LOADED), {})


def test_it_needs_nothing_beside_it():
    text = make(result("bsp", 4_000_000), result("local_sgd", 500_000))
    page = _Page(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", text)
    assert sum(tag == "svg" for tag, _ in page.tags) == 5
    assert "partition: iid()" in text


def test_the_best_of_a_column_is_marked_also_if_it_is_shared():
    fast = replace(result("local_sgd", 500_000), seconds=0.75)
    cells = _Page(make(result("bsp", 4_000_000), fast)).cells
    best = [text for text, is_best in cells if is_best]
    assert best == ["0.9800", "0.9800", "0.75 s", "500 kB"]


def test_less_is_better_where_the_result_says_so():
    losses = [
        replace(result(name, 1000), measure=measure, higher_is_better=False)
        for name, measure in (("a", 2.0), ("b", 1.5))
    ]
    assert ("1.5000", True) in _Page(make(*losses)).cells


def test_the_first_is_compared_with_in_words():
    words = report.findings([result("bsp", 4_000_000), replace(result("local_sgd", 500_000), measure=0.97)])
    assert words == [
        "Against bsp, local_sgd sent 0.125 times the bytes, took 1 times as long, and ended at 0.9700 "
        "in accuracy, where bsp ended at 0.9800."
    ]
    assert report.findings([result("bsp", 0), result("local_sgd", 0)]) == []


def test_what_never_exchanged_is_no_best_and_is_not_compared():
    alone = replace(result("diloco", 1000), seconds=0.1, synchronisations=0)
    results = [alone, result("bsp", 4_000_000)]
    words = "diloco never exchanged: its workers trained alone until their final average."
    assert report.findings(results) == report.findings(results[::-1]) == [words]
    best = [text for text, is_best in _Page(make(*results)).cells if is_best]
    assert best == ["0.9800", "1.50 s", "4 MB"]


def test_names_are_text():
    text = make(replace(result("bsp", 1000), algorithm="<b>&", composition="<script>"))
    assert "<script>" not in text
    assert "&lt;b&gt;&amp;" in text


@pytest.mark.parametrize("sent", [0, 4_000_000])
def test_bars_are_the_numbers(sent):
    axes = new_figure(4, 3).subplots()
    plot.draw_seconds(axes, [result("bsp", sent)])
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.9, 0.6])
    axes = new_figure(4, 3).subplots()
    plot.draw_primitives(axes, [result("bsp", sent), result("local_sgd", sent // 2)])
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([0.9 * sent / 1e6, 0.45 * sent / 1e6, 0.1 * sent / 1e6, 0.05 * sent / 1e6])


@pytest.mark.parametrize(("least", "wanted"), [(2_000_000, {"5", "20", "50"}), (30_000, {"0.1", "1", "10"})])
def test_bytes_are_plain_numbers_on_their_axis(least, wanted):
    figure = new_figure(4, 3)
    axes = figure.subplots()
    plot.draw_bytes(axes, [result("bsp", 80_000_000), result("local_sgd", least)])
    figure.draw_without_rendering()
    shown = {label.get_text() for minor in (False, True) for label in axes.get_xticklabels(minor=minor)}
    assert wanted < shown
    assert not any("times" in text or "^" in text for text in shown)


def test_measures_that_are_nearly_alike_stand_in_full_on_their_axis():
    figure = new_figure(4, 3)
    axes = figure.subplots()
    near = [Point(1, 1.0, 9, 3.7121), Point(2, 2.0, 18, 3.71211)]
    plot.draw_time(axes, [replace(result("bsp", 18), history=near)])
    figure.draw_without_rendering()
    assert axes.yaxis.get_offset_text().get_text() == ""

"""The report of a comparison: one HTML file that needs nothing beside it."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from relaxcomm.cli import plot
from relaxcomm.cli.table import cells, link_in_words, never_exchanged, title
from relaxcomm.monitoring.snapshot import jsonable
from relaxcomm.system.files import write_whole
from relaxcomm.system.quantities import number
from relaxcomm.training.results import Result

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto;
  max-width: 82rem; padding: 0 1.5rem; }
h1 { margin-bottom: 0; } .facts { color: #666; margin-top: .2rem; }
table { border-collapse: collapse; margin: 1.5rem 0; }
th, td { padding: .35rem .9rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .best { font-weight: 700; }
.scroll { overflow-x: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1.5rem; }
.failed { color: #a00; white-space: pre-wrap; }
figure { margin: 0; } figure svg { width: 100%; height: auto; } figcaption { color: #444; font-size: .95rem; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .85rem; }
"""


def write(
    results: Sequence[Result],
    facts: Mapping[str, object],
    path: Path,
    failed: Mapping[str, str],
) -> Path:
    """Write the report and return its path.

    Args:
        results: one an algorithm.
        facts: what is needed to make them again.
        path: of the HTML file.
        failed: why others have none, by algorithm.
    """
    return write_whole(path, make(results, facts, failed))


def make(results: Sequence[Result], facts: Mapping[str, object], failed: Mapping[str, str]) -> str:
    """The page."""
    heading = html.escape(title(results[0]))
    about = (
        f"relaxcomm compare, {html.escape(str(facts['date']))}, PyTorch {html.escape(str(facts['torch']))}; "
        f"link: {html.escape(link_in_words(results[0]))}"
    )
    return "\n".join(
        (
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>{heading}</h1>",
            f'<p class="facts">{about}</p>',
            *(f"<p>{html.escape(sentence)}</p>" for sentence in findings(results)),
            *(_failure(name, why) for name, why in failed.items()),
            _table(results),
            '<div class="plots">',
            *_figures(results),
            "</div>",
            "<h2>What ran</h2>",
            *(f"<pre>{html.escape(result.composition)}</pre>" for result in results),
            "<h2>Configuration</h2>",
            f"<pre>{html.escape(yaml.safe_dump(jsonable(facts['configuration']), sort_keys=False))}</pre>",
            "</body></html>\n",
        )
    )


def findings(results: Sequence[Result]) -> list[str]:
    """Each algorithm against the first that exchanged, in words."""
    together = [one for one in results if not never_exchanged(one)]
    found = []
    for other in together[1:]:
        first = together[0]
        if not first.bytes_sent or not other.bytes_sent:
            continue
        found.append(
            f"Against {first.algorithm}, {other.algorithm} sent "
            f"{number(other.bytes_sent / first.bytes_sent)} times the bytes, "
            f"took {number(other.seconds / first.seconds)} times as long, and ended at "
            f"{other.measure:.4f} in {first.heading}, where {first.algorithm} ended at {first.measure:.4f}."
        )
    return found + [
        f"{one.algorithm} never exchanged: its workers trained alone until their final average."
        for one in results
        if never_exchanged(one)
    ]


def _failure(name: str, why: str) -> str:
    return f'<p class="failed">{html.escape(f"{name} failed: {why}")}</p>'


def _table(results: Sequence[Result]) -> str:
    header, rows = cells(results)
    header += ["exposed", "hidden"]
    for row, result in zip(rows, results, strict=True):
        for seconds in (result.exposed_communication_seconds, result.hidden_communication_seconds):
            row.append(f"{seconds:.2f} s")
    best = {
        1: _best(results, lambda one: one.measure if one.higher_is_better else -one.measure),
        header.index("time"): _best(results, lambda one: -one.seconds),
        header.index("sent"): _best(results, lambda one: -one.bytes_sent),
    }
    lines = ["<tr>", *(f"<th>{html.escape(name)}</th>" for name in header), "</tr>"]
    for row, result in zip(rows, results, strict=True):
        lines.append("<tr>")
        for column, cell in enumerate(row):
            is_best = column in best and cell == rows[best[column]][column] and not never_exchanged(result)
            mark = ' class="best"' if is_best else ""
            lines.append(f"<td{mark}>{html.escape(cell)}</td>")
        lines.append("</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _best(results: Sequence[Result], score: Callable[[Result], float]) -> int:
    return max(range(len(results)), key=lambda at: (not never_exchanged(results[at]), score(results[at])))


def _figures(results: Sequence[Result]) -> list[str]:
    measure = f"held-out {results[0].heading}"
    bars = 1.3 + 0.38 * len(results)
    drawn = (
        (f"{measure} over time", plot.draw_time, 4.0),
        (f"{measure} over bytes", plot.draw_bytes, 4.0),
        (f"{measure} over steps", plot.draw_steps, 4.0),
        ("Training time: the mean wait for the network, and the rest", plot.draw_seconds, bars),
        (
            "Bytes for training, by exchange primitive; votes and so on by name",
            plot.draw_primitives,
            bars,
        ),
    )
    made = []
    for caption, draw, height in drawn:
        picture = plot.svg(draw, results, height=height)
        text = caption[0].upper() + caption[1:]
        made.append(f"<figure>{picture}<figcaption>{html.escape(text)}</figcaption></figure>")
    return made

"""What was measured of each algorithm, from benchmarks/results."""

from __future__ import annotations

import ast
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parents[1] / "benchmarks/results"
_WIDTH, _HEIGHT, _EDGE = 640, 300, 46


@cache
def _newest(pattern: str) -> tuple[str, dict[str, Any]]:
    path = sorted(_RESULTS.glob(pattern))[-1]
    return path.name, json.loads(path.read_text(encoding="utf-8"))


def section(name: str) -> str:
    """What came of an algorithm on digits, or "" where it took no part."""
    for pattern in ("digits-all-*.json", "digits-curves-*.json"):
        file, result = _newest(pattern)
        if name in result["found"]:
            break
    else:
        return ""
    options, found, bsp = result["options"], result["found"][name], result["found"]["bsp"]["accuracy"]
    date, several = result["environment"]["date"][:10], options["seeds"] > 1
    spread = f"standard deviation {found['deviation']:.3f}; " if several else ""
    dots = f"{scatter(name)}\nEach dot is an algorithm. " if several else ""
    return (
        f"## Measured\n\nDigits, eight workers, {options['epochs']} epochs, "
        f"{options['seeds']} {'seeds' if several else 'seed'}, {_settings(result['plans'][name])}: accuracy "
        f"**{found['accuracy']:.3f}** ({spread}`bsp` {bsp:.3f}), with **{_share(found['bytes'])}** of the "
        f"bytes of gradients in every step.\n\n{dots}`benchmarks/digits_all.py`, {date}, `{file}`.\n\n"
        f"{curve(name)}"
    )


def _settings(plan: str) -> str:
    """How it was run, from `Plan(arguments={…}, lr=…, …)`."""
    call = ast.parse(plan, mode="eval").body
    assert isinstance(call, ast.Call)
    given = {one.arg: one.value for one in call.keywords}
    names = {"lr": "learning rate", "momentum": "momentum"}
    said = [f"{name} {ast.unparse(given[key])}" for key, name in names.items() if key in given]
    if "adam" in given and ast.literal_eval(given["adam"]):
        said = [f"Adam with an eps of 0.001 in the place of SGD, {said[0]}"]
    for key in ("arguments", "settings"):
        said += [f"`{name}={value!r}`" for name, value in ast.literal_eval(given[key]).items()]
    return ", ".join(said)


def _share(share: float) -> str:
    return f"{100 * share:.3g} %"


def curve(name: str) -> str:
    """Rank 0's accuracy after each epoch with one seed, beside bsp and workers that never exchange."""
    file, result = _newest("digits-curves-*.json")
    epochs, bottom = result["options"]["epochs"], 0.8
    styles = {"never exchanging": "dotted", "bsp": "dashed"} | {name: "mark"}
    lines = []
    for one, style in styles.items():
        points = " ".join(
            f"{_across(epoch / epochs):.1f},{_up(accuracy, bottom):.1f}"
            for epoch, accuracy in enumerate(result["found"][one]["curve"], start=1)
        )
        lines.append(f'<polyline class="{style}" points="{points}"><title>{one}</title></polyline>')
    ticks = {str(epoch): epoch / epochs for epoch in range(5, epochs + 1, 5)}
    dashed = "" if name == "bsp" else " `bsp` is dashed,"
    return (
        f"{_framed(lines, ticks, 'epochs', bottom)}\nThe model of worker 0 after each epoch, with one seed;"
        f"{dashed} workers that never exchange are dotted. Below {bottom} all are drawn there. `{file}`.\n"
    )


def scatter(name: str) -> str:
    """Accuracy over bytes of all algorithms, with one of them marked, in the colours of the page."""
    _, result = _newest("digits-all-*.json")
    found = {one: facts for one, facts in result["found"].items() if facts["bytes"] > 0}
    lowest, bottom = math.log10(min(facts["bytes"] for facts in found.values())) - 0.1, 0.9

    def along(share: float) -> float:
        return (math.log10(share) - lowest) / (0.4 - lowest)

    dots = []
    for one, facts in sorted(found.items(), key=lambda pair: pair[0] == name):
        x, y = _across(along(facts["bytes"])), _up(facts["accuracy"], bottom)
        low = f" (at {facts['accuracy']:.2f}, below)" if facts["accuracy"] < bottom else ""
        title = f"<title>{one}: {facts['accuracy']:.3f}, {_share(facts['bytes'])}</title>"
        dots.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{7 if one == name else 4}"'
            f"{' class=mark' if one == name else ''}>{title}</circle>"
        )
        if one in (name, "bsp"):
            dots.append(f'<text x="{x:.1f}" y="{y - 12:.1f}" text-anchor="middle">{one}{low}</text>')
    ticks = {f"{100 * share:g} %": along(share) for share in (1e-3, 1e-2, 1e-1, 1) if along(share) >= 0}
    return _framed(dots, ticks, "bytes sent, of those of gradients in every step (logarithmic)", bottom)


def _across(share: float) -> float:
    return _EDGE + share * (_WIDTH - 2 * _EDGE)


def _up(accuracy: float, bottom: float) -> float:
    share = (max(accuracy, bottom) - bottom) / (1 - bottom)
    return _HEIGHT - _EDGE - share * (_HEIGHT - 2 * _EDGE)


def _framed(drawn: list[str], ticks: dict[str, float], below: str, bottom: float) -> str:
    """A picture with its axes, accuracy upwards."""
    right, base = _WIDTH - _EDGE, _HEIGHT - _EDGE
    lines = [f'<path d="M{_EDGE} {_EDGE}V{base}H{right}" class="axis"/>']
    for text, share in ticks.items():
        lines.append(f'<text x="{_across(share):.1f}" y="{base + 16}" text-anchor="middle">{text}</text>')
    for accuracy in (bottom, (1 + bottom) / 2, 1):
        y = _up(accuracy, bottom) + 4
        lines.append(f'<text x="{_EDGE - 6}" y="{y:.1f}" text-anchor="end">{accuracy:g}</text>')
    lines.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{below}</text>')
    lines.append(f'<text x="{_EDGE}" y="{_EDGE - 18}">accuracy on held-out digits</text>')
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join([*lines, *drawn])}</svg>'
    return f'<div class="drawn">\n{picture}\n</div>\n'

"""Draws the pictures of the pages on concepts from what the primitives do: `python -m website.pictures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from relaxcomm import Rule, Topology, round_trip, trajectory
from relaxcomm.primitives import (
    all_reduce,
    average,
    complete,
    deltas,
    every,
    every_step,
    nesterov,
    one_peer_exponential,
    parameters,
    quantize,
    ring,
    top_k,
)

FOLDER = Path(__file__).parents[1] / "docs/concepts"
_STYLE = """\
<style>
.picture { --ink: #444; --faint: #bbb; font: 13px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { .picture { --ink: #ccc; --faint: #555; } }
.picture text { fill: var(--color-foreground-secondary, var(--ink)); }
.picture .faint { stroke: var(--color-foreground-border, var(--faint)); fill: none; }
.picture .line { fill: none; stroke-width: 2.2; }
.picture .a { stroke: #2a7de1; } .picture .b { stroke: #e0862d; } .picture .c { stroke: #2fa36b; }
.picture .fill { fill: #2a7de1; } .picture .gone { fill: var(--color-foreground-border, var(--faint)); }
.picture .node { fill: #2a7de1; }
</style>"""
_MOVES = torch.tensor([[0.9, 0.5, 0.2], [0.7, 0.3, 0.35], [1.0, 0.25, 0.5], [0.6, 0.55, 0.1]] * 3)
_WIDTH, _HEIGHT = 300, 190


def lines(rule: Rule, title: str, *, until: int = 12, top: float = 0.0) -> str:
    """Three workers' parameter, step by step, under a rule; pictures with the same `top` have one scale."""
    values = torch.cat([torch.zeros(1, 3), trajectory(rule, _MOVES[:until])])
    low, high = float(values.min()), max(top, float(values.max()))

    def place(step: int, value: float) -> str:
        x = 20 + step / until * (_WIDTH - 40)
        return f"{x:.1f},{_HEIGHT - 30 - (value - low) / (high - low) * (_HEIGHT - 70):.1f}"

    drawn = [
        f'<polyline class="line {name}" points="'
        f'{" ".join(place(step, float(values[step, rank])) for step in range(until + 1))}"/>'
        for rank, name in enumerate("abc")
    ]
    return _titled(title) + _axis_of_steps() + "".join(drawn)


def sent(title: str, *, moved: bool) -> str:
    """What three workers send after four local steps: where they stand, or how far they have come."""
    alone = torch.cat([torch.zeros(1, 3), _MOVES[:4].cumsum(0)])
    drawn = []
    for rank, name in enumerate("abc"):
        at = [(40 + step * 45, _HEIGHT - 40 - float(alone[step, rank]) * 33) for step in range(len(alone))]
        (_, y), (end_x, end_y) = at[0], at[-1]
        path = " ".join(f"{one:.1f},{other:.1f}" for one, other in at)
        drawn.append(f'<polyline class="line {name}" opacity="0.5" points="{path}"/>')
        if moved:
            far = f"M{end_x + 20 + 12 * rank} {y:.1f}V{end_y:.1f}m-4 7l4 -7l4 7"
            drawn.append(f'<path class="line {name}" d="{far}"/>')
        else:
            drawn.append(f'<circle class="line {name}" cx="{end_x:.1f}" cy="{end_y:.1f}" r="6"/>')
    return _titled(title) + _axis_of_steps() + "".join(drawn)


def bars(values: Sequence[float], title: str) -> str:
    """A bar for each entry of a tensor."""
    middle, width = _HEIGHT / 2 + 5, (_WIDTH - 40) / len(values)
    drawn = [
        f'<rect class="fill" x="{20 + index * width:.1f}" y="{middle - max(value, 0) * 60:.1f}" '
        f'width="{width - 3:.1f}" height="{max(abs(value) * 60, 0.6):.1f}"/>'
        for index, value in enumerate(values)
    ]
    return _titled(title) + f'<path class="faint" d="M20 {middle}h{_WIDTH - 40}"/>' + "".join(drawn)


def graph(topology: Topology, title: str, step: int = 0) -> str:
    """Eight workers, and who sends to whom in a step."""
    at = [
        (_WIDTH / 2 + 65 * math.sin(rank * math.pi / 4), 112 - 65 * math.cos(rank * math.pi / 4))
        for rank in range(8)
    ]
    edges = [
        f'<path class="faint" d="M{at[rank][0]:.1f} {at[rank][1]:.1f}L{at[peer][0]:.1f} {at[peer][1]:.1f}"/>'
        for rank in range(8)
        for peer in topology.listeners(rank, 8, step)
    ]
    nodes = [f'<circle class="node" cx="{x:.1f}" cy="{y:.1f}" r="8"/>' for x, y in at]
    return _titled(title) + "".join(edges + nodes)


def _titled(title: str) -> str:
    return f'<text x="{_WIDTH / 2}" y="20" text-anchor="middle">{title}</text>'


def _axis_of_steps() -> str:
    base = _HEIGHT - 22
    return (
        f'<path class="faint" d="M20 {base}h{_WIDTH - 40}"/>'
        f'<text x="{_WIDTH - 20}" y="{base + 15}" text-anchor="end">steps</text>'
    )


def _side_by_side(*panels: str) -> str:
    """Panels as pictures within one, which the site takes apart (`website.repository`)."""
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    within = (f'<svg x="{index * _WIDTH}" {size}>{panel}</svg>' for index, panel in enumerate(panels))
    return _svg(_WIDTH * len(panels), "\n".join(within))


def step() -> str:
    """One step of two workers, on a line of time."""
    parts = [
        ("forward", 20, 150, "gone"),
        ("backward", 170, 300, "gone"),
        ("agreements", 470, 90, "fill"),
        ("optimizer", 560, 110, "gone"),
        ("after", 670, 90, "fill"),
    ]
    told = [("clip, unscale", 545), ("outers, parameter rules", 740)]
    drawn = [
        f'<rect class="{style}" opacity="0.5" x="{x}" y="40" width="{width - 4}" height="34" rx="5"/>'
        f'<text x="{x + width / 2}" y="61" text-anchor="middle">{name}</text>'
        for name, x, width, style in parts
    ]
    for index, begins in enumerate((240, 330, 420)):
        y = 84 + 26 * index
        drawn.append(f'<path class="faint" d="M{begins} 74V{y}"/>')
        drawn.append(
            f'<rect class="fill" opacity="0.5" x="{begins}" y="{y}" width="100" height="20" rx="4"/>'
            f'<text x="{begins + 50}" y="{y + 15}" text-anchor="middle">bucket {index}</text>'
        )
    drawn += [f'<text x="{x}" y="28" text-anchor="middle">{text}</text>' for text, x in told]
    drawn.append('<path class="faint" d="M560 74V84"/>')
    drawn.append('<text x="560" y="99">late results that are due are applied</text>')
    drawn.append('<text x="240" y="180">buckets leave while backward goes on</text>')
    return _svg(820, "".join(drawn))


def message() -> str:
    """What becomes of a tensor on its way."""
    parts = ("read", "encode", "message", "exchange", "decode, add", "outer", "write")
    width = 116
    drawn = []
    for index, name in enumerate(parts):
        x = 10 + index * (width + 12)
        style = "fill" if name in ("message", "exchange") else "gone"
        drawn.append(
            f'<rect class="{style}" opacity="0.5" x="{x}" y="50" width="{width}" height="40" rx="6"/>'
            f'<text x="{x + width / 2}" y="75" text-anchor="middle">{name}</text>'
        )
        if index:
            drawn.append(f'<path class="faint" d="M{x - 12} 70h10"/>')
    by = {0: "payload", 1: "compressor", 3: "exchange", 4: "compressor", 5: "outer", 6: "payload"}
    for where, text in by.items():
        x = 10 + where * (width + 12) + width / 2
        drawn.append(f'<text x="{x}" y="38" text-anchor="middle">{text}</text>')
    drawn.append('<text x="138" y="118">what was left out stays in a slot: the residual</text>')
    return _svg(910, "".join(drawn), height=140)


def _svg(width: int, body: str, height: int = _HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width} {height}" role="img">'
        f"{_STYLE}{body}</svg>\n"
    )


def _rule(**parts: object) -> Rule:
    return Rule(**({"trigger": every(steps=4), "payload": parameters(), "exchange": all_reduce()} | parts))  # type: ignore[arg-type]


def pictures() -> dict[str, str]:
    """Each picture's file and what is in it."""
    entries = torch.sin(torch.arange(16) * 1.7) * torch.linspace(1, 0.15, 16)
    fewer, coarser = (
        round_trip(one, [entries])[0].tolist() for one in (top_k(density=0.25), quantize(bits=2))
    )
    late = _rule(delay=2)
    moved = {"payload": deltas(), "outer": nesterov(lr=0.7, momentum=0.6)}
    return {
        "when.svg": _side_by_side(
            lines(_rule(trigger=every_step()), "every_step()"),
            lines(_rule(), "every(steps=4)"),
        ),
        "what.svg": _side_by_side(
            sent("parameters(): where each stands", moved=False),
            sent("deltas(): how far each has come", moved=True),
        ),
        "encoded.svg": _side_by_side(
            bars(entries.tolist(), "identity()"),
            bars(fewer, "top_k(density=0.25)"),
            bars(coarser, "quantize(bits=2)"),
        ),
        "over-what.svg": _side_by_side(
            graph(complete(), "all_reduce() reaches all"),
            graph(ring(), "gossip() on ring()"),
            graph(one_peer_exponential(), "one_peer_exponential(), step 1", step=1),
        ),
        "how-late.svg": _side_by_side(
            lines(_rule(), "delay=0"),
            lines(late, "delay=2"),
        ),
        "step.svg": step(),
        "message.svg": message(),
        "what-then.svg": _side_by_side(
            lines(_rule(payload=deltas(), outer=average()), "average()", top=8),
            lines(_rule(**moved), "nesterov(lr=0.7, momentum=0.6)", top=8),
        ),
    }


if __name__ == "__main__":
    for file, text in pictures().items():
        (FOLDER / file).write_text(text, encoding="utf-8")

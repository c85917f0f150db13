"""What the README says is as new as the results; its code, commands and links are with those of docs/."""

import re
from pathlib import Path

from benchmarks.lab.headline import headline
from benchmarks.report import RESULTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_commands_are_targets_of_make():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    commands = re.findall(r"^\$ make (\S+)", README, flags=re.MULTILINE)
    assert commands == ["demo", "test"]
    assert set(commands) <= set(targets)


def test_its_seconds_are_those_of_the_newest_runs():
    assert headline(RESULTS) in README, "run python -m benchmarks.lab.headline"


def test_how_many_times_as_fast_it_says_it_is_follows_from_the_runs_that_were_timed():
    rows = re.findall(r"^\| \[\w+\]\(.*\*\*([\d.]+) s\*\*.*\| ([\d.]+) s \|$", README, flags=re.MULTILINE)
    times = sorted(float(ddp) / float(ours) for ours, ddp in rows)  # derived ones end otherwise
    assert len(times) == 2
    for page in ("README.md", "docs/README.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert f"{times[0]:.0f} to {times[1]:.0f} times as fast" in text, page


def test_evidence_gives_each_time_the_name_that_it_was_measured_under():
    evidence = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\d) \| (\d+) ([MG])bit/s \| \[(\w+)\]\(\.\./(.*?)\) (.*)$", evidence, re.MULTILINE
    )
    for workers, rate, unit, task, report, cells in rows:
        place = f"### {task}, {workers} workers, {rate}{unit.lower()}bit\n"
        measured = (ROOT / report).read_text(encoding="utf-8").partition(place)[2].partition("###")[0]
        ours, auto, rival, ddp = (one.removesuffix(", derived") for one in cells.strip("| ").split(" | "))
        named = [(ours, "relaxcomm "), (f"{auto} (auto)", "relaxcomm "), (rival, ""), (f"{ddp} (ddp)", "")]
        for cell, owner in named:
            seconds, _, name = cell.rstrip(")").replace("`", "").partition(" (")
            assert f"| {owner}{name or 'periodic_averaging'} | " in measured, cell
            line = measured.partition(f"| {owner}{name or 'periodic_averaging'} | ")[2].partition("\n")[0]
            assert f"| {seconds} [" in f"| {line.partition(' | ')[2]}", cell
    assert len(rows) == 7


def test_it_fits_on_a_screen_and_a_half():
    assert len(README.splitlines()) <= 100

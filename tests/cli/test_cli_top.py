"""`relaxcomm top` against exporters of a job that advances by known steps."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import select
import signal
import sys
import time
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.ports import free_port
from relaxcomm.cli.app import app
from relaxcomm.cli.ranks_view import History, Row, make_row, mark_slowest, sparkline, table
from relaxcomm.cli.top import Watch
from relaxcomm.monitoring.collector import Labelled, RunCollector
from relaxcomm.monitoring.exporter import Exporter, Target
from relaxcomm.monitoring.observations import STEP_BOUNDS
from relaxcomm.monitoring.scraping import Reader, Reading
from relaxcomm.monitoring.snapshot import Snapshot

START = Snapshot(
    algorithm="local_sgd",
    keeps_step=True,
    world_size=3,
    steps=0,
    synchronisations=0,
    last_synchronisation=None,
    samples=0,
    bytes_uncompressed=0,
    bytes_moved={},
    evaluation_bytes=(0, 0),
    exchanges={},
    step_bounds=STEP_BOUNDS,
    step_counts=(0,) * (len(STEP_BOUNDS) + 1),
    step_seconds=0.0,
    exposed_seconds=0.0,
    hidden_seconds=0.0,
    callback_seconds=0.0,
    triggers={},
    values={},
    evaluations={},
)


def advance(rank: int, look: int) -> Snapshot:
    """Ten steps of 50 ms from one look to the next; rank 1 computes for 40 ms of them, the others for 10."""
    return replace(
        START,
        steps=10 * look,
        synchronisations=2 * look,
        bytes_uncompressed=60_000 * look,
        bytes_moved={"all_reduce": (10_000 * look, 10_000 * look), "vote": (2_000 * look, 0)},
        evaluation_bytes=(7_000 * look, 7_000 * look),
        evaluations={"accuracy": 0.96875},
        step_counts=(0, 10 * look, *(0,) * (len(STEP_BOUNDS) - 1)),
        step_seconds=0.5 * look,
        exposed_seconds=(0.1 if rank == 1 else 0.4) * look,
        values={"loss": 3.0 - rank},
    )


@pytest.fixture
def running():
    """The address of rank 0 of such a job; rank 2 has gone."""
    exporters = []
    for rank in range(2):
        own, shown, looks = CollectorRegistry(), CollectorRegistry(), itertools.count()
        own.register(RunCollector(lambda rank=rank, looks=looks: advance(rank, next(looks))))
        shown.register(Labelled(own, {"rank": str(rank), "run": "r"}))
        exporters.append(Exporter("127.0.0.1", 0, shown, "r"))
    places = [Target(rank, "127.0.0.1", one.port) for rank, one in enumerate(exporters)]
    exporters[0].targets = [*places, Target(2, "127.0.0.1", free_port())]
    yield exporters[0].url
    for one in exporters:
        one.close()


def test_plain_lines(running):
    result = CliRunner().invoke(app, ["top", running])
    assert result.exit_code == 0, result.output
    first, second, third = result.output.splitlines()
    assert first.startswith("rank 0  steps ")
    assert "step 50 ms  exposed 80%" in first
    told = "saved 144 kB  reduction 5x  LSSR 80%  accuracy 0.9688  loss 3.000"
    assert told in re.sub(r"saved \d+ kB", "saved 144 kB", first)
    assert "exposed 20%" in second
    assert second.endswith("slowest")
    unknown = ["steps", "step", "exposed", "sent/s", "saved", "reduction", "LSSR", "accuracy", "loss"]
    assert third == "  ".join(["rank 2", *(f"{name} -" for name in unknown), "silent"])
    assert "\x1b" not in result.output


def test_a_run_that_ends_between_two_looks_leaves_what_is_known_and_says_so(running, monkeypatch):
    reader = Reader(running)
    places = reader.ranks()
    looks = iter([reader.read(places, 0.0), {}])
    answers = iter([places])  # and then none
    monkeypatch.setattr(Reader, "read", lambda *_: next(looks))
    monkeypatch.setattr(Reader, "ranks", lambda _: next(answers, None) or refuse())
    result = CliRunner().invoke(app, ["top", running])
    assert result.exit_code == 0
    assert [line[:6] for line in result.stdout.splitlines()] == ["rank 0", "rank 1", "rank 2"]
    assert result.stderr == "relaxcomm: rank 0 has not answered for 1 s; the last that is known\n"


def refuse():
    raise ConnectionRefusedError("connection refused")


def test_every_column_says_what_it_is():
    headings, rows = table([Row(0, evaluations={"accuracy": 0.5})], ["accuracy", "f1"])
    named = [name for name in headings if name]
    assert len(set(named)) == len(named) == len(headings) - 1, "the last one marks a rank"
    assert rows[0][headings.index("accuracy")] == "0.5000"
    assert rows[0][headings.index("f1")] == "-"


def test_rates_are_between_two_readings():
    before = Reading(
        0, "r", 10.0, {"step_seconds_count": 5, "step_seconds_sum": 1.0, "steps": 6, "bytes_sent": 100}, {}
    )
    values = {
        "step_seconds_count": 9,
        "step_seconds_sum": 3.0,
        "steps": 10,
        "steps.local": 5,
        "bytes_sent": 500,
    }
    now = Reading(
        0, "r", 12.0, {**values, "exposed_communication_seconds": 0.5, "bytes_uncompressed": 2000}, {}
    )
    row = make_row(before, now)
    assert (row.step_seconds, row.exposed, row.sent_per_second) == (0.5, 0.25, 200.0)
    assert (row.compute_seconds, row.saved_bytes, row.reduction, row.lssr) == (0.375, 1500, 4.0, 0.5)
    assert make_row(None, now).sent_per_second is None
    evaluated = make_row(before, replace(now, values={**now.values, "exposed_communication_seconds": 9.0}))
    assert (evaluated.exposed, evaluated.compute_seconds) == (1.0, 0.0)  # waits of rounds are in no step
    assert mark_slowest([evaluated, replace(evaluated, rank=1)])[0].note == ""
    assert make_row(now, replace(now, seconds=13.0)).note == "stands"
    again = make_row(now, replace(before, seconds=14.0))
    assert (again.sent_per_second, again.note) == (None, ""), "a process that was started again"


def test_only_a_rank_that_is_clearly_slower_is_marked():
    rows = [make_row(None, Reading(rank, "r", 0.0, {"steps": 1}, {})) for rank in range(3)]
    alike = [replace(row, compute_seconds=0.1 + 0.001 * row.rank) for row in rows]
    assert [row.note for row in mark_slowest(alike)] == ["", "", ""]
    slow = [*alike[:2], replace(rows[2], compute_seconds=0.2)]
    assert [row.note for row in mark_slowest(slow)] == ["", "", "slowest"]
    assert mark_slowest(rows) == rows


def test_another_run_begins_afresh():
    history = History()
    values = {"steps": 5.0, "loss": 1.0}
    history.rows([0], {0: Reading(0, "a", 0.0, values, {})})
    (row,) = history.rows([0], {0: Reading(0, "b", 1.0, {"steps": 1.0, "loss": 9.0}, {})})
    assert (row.losses, row.note, row.sent_per_second) == ((9.0,), "", None)


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (40, "rank steps step loss"),
        (60, "rank steps step exposed sent/s LSSR loss"),
        (80, "rank steps step exposed sent/s saved reduction LSSR loss"),
        (140, "rank steps step exposed sent/s saved reduction LSSR loss"),
    ],
)
def test_losses_take_what_is_left_and_nothing_is_cut(width, headings):
    watch = Watch(Reader("127.0.0.1:1"))
    row = make_row(
        None, Reading(0, "r", 0.0, {"steps": 12_345, "bytes_uncompressed": 1e9, "bytes_sent": 1e6}, {})
    )
    seen = {"losses": (1.0, 2.0) * 30, "note": "slowest", "evaluations": {"accuracy": 0.96875}, "loss": 0.5}
    watch.rows = [replace(row, rank=rank, **seen) for rank in range(3)]
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(watch.shown(width))
    lines = console.file.getvalue().splitlines()
    assert " ".join(lines[:2]).split()[-2 - len(headings.split()) :] == [
        "accuracy",
        "0.9688",
        *headings.split(),
    ]
    assert "…" not in "".join(lines)
    assert all(len(line) <= width for line in lines)
    drawn = sum(one in "▁█" for one in lines[2])
    assert drawn == 60 if width == 140 else drawn < 30


def test_sparkline():
    assert sparkline([]) == ""
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([0, float("nan"), 7]) == "▁!█"
    assert sparkline([float("inf")]) == ""


def test_nobody_there_is_told_with_what_to_do():
    result = CliRunner().invoke(app, ["top", f"127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert "no job answers" in result.output
    assert "metrics: {}" in result.output


def test_a_terminal_is_redrawn_and_given_back(running):
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs begin with it ignored
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="14")
        os.execv(sys.executable, [sys.executable, "-m", "relaxcomm", "top", running])
    output, begun = b"", time.monotonic()
    interrupted = False
    while time.monotonic() - begun < 240:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                output += os.read(terminal, 65536)
            except OSError:
                break
        if output.count(b"silent") >= 2 and not interrupted:
            os.kill(child, signal.SIGINT)
            interrupted = True
    if not interrupted:
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b"\x1b[?1049h" in output  # another screen,
    assert b"\x1b[?1049l" in output  # and back
    assert b"silent" in output.rpartition(b"\x1b[?1049l")[2]  # the last state stays

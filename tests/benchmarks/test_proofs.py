"""Files of tests that run side by side: what hangs, crashes or cannot be tried leaves the others."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu import proofs
from benchmarks.gpu.proofs import prove
from tests.waiting import until

TESTS = """
import os, signal, time
import pytest

def test_holds(): pass

def test_does_not(): assert 1 == 2, "numbers"

def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as in a library that does not return
    time.sleep(60)

def test_crashes(): os._exit(7)

def test_loses_the_device(): raise RuntimeError("CUDA error: an illegal memory access was encountered")

@pytest.mark.skip("for a reason")
def test_is_skipped(): pass

def test_is_last(): pass
"""


@pytest.mark.slow
def test_one_that_hangs_or_crashes_does_not_take_others_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(proofs, "_GRACE_SECONDS", 0.5)
    path, broken = tmp_path / "test_made.py", tmp_path / "test_broken.py"
    path.write_text(TESTS)
    broken.write_text("import nothing_of_that_name")
    found = list(prove([str(broken), str(path)], 60, 1))
    told = {Path(one["test"].split("::")[-1]).name: (one["outcome"], one["why"]) for one in found}
    assert len(told) == len(found)
    assert {name: outcome for name, (outcome, _) in told.items()} == {
        "test_broken.py": "failed",
        "test_holds": "proven",
        "test_does_not": "failed",
        "test_hangs": "failed",
        "test_crashes": "failed",
        "test_loses_the_device": "failed",
        "test_is_skipped": "skipped",
        "test_is_last": "proven",
    }
    assert "numbers" in told["test_does_not"][1]
    assert "took too long" in told["test_hangs"][1]
    assert "ended the process with 7" in told["test_crashes"][1]
    assert "an illegal memory access" in told["test_loses_the_device"][1]
    assert "nothing_of_that_name" in told["test_broken.py"][1]
    assert "for a reason" in told["test_is_skipped"][1]


@pytest.mark.slow
def test_what_was_not_reached_is_told(tmp_path):
    path, later = tmp_path / "test_made.py", tmp_path / "test_later.py"
    path.write_text("import time\ndef test_first(): time.sleep(60)\ndef test_second(): pass\n")
    later.write_text("def test_third(): pass\n")
    found = list(prove([str(path), str(later)], 5, 30))
    assert {one["outcome"] for one in found} == {"not reached"}
    names = [one["test"].split("::")[-1] for one in found]
    assert names == ["test_first", "test_second", str(later)]  # of which nobody has seen inside
    assert list(prove([str(path)], 0, 30)) == [
        {"test": str(path), "outcome": "not reached", "why": "the time was over"}
    ]


HANGING = """
import time
import pytest

@pytest.mark.parametrize("number", range(5))
def test_hangs(number): time.sleep(60 * (number != 1))
"""


def test_a_file_whose_tests_only_hang_is_left(tmp_path):
    """By pytest's own limit here, behind which the same process goes on to the next test."""
    path = tmp_path / "test_made.py"
    path.write_text(HANGING)
    found = list(prove([str(path)], 60, 1))
    assert [one["outcome"] for one in found] == ["failed", "proven", "failed", "failed", "not reached"]
    assert found[-1]["why"] == "2 tests before it hung"


def test_what_the_first_files_hang_in_does_not_hide_the_last_ones(tmp_path):
    names = ["test_a.py", "test_b.py", "test_c.py", "test_kernels.py"]
    for name in names:
        (tmp_path / name).write_text(HANGING)
    (tmp_path / names[-1]).write_text("def test_holds(): pass\n")
    first = next(prove([str(tmp_path / name) for name in names], 60, 60, at_once=2))
    assert (first["outcome"], names[-1] in first["test"]) == ("proven", True), first


def test_a_line_without_its_end_is_not_read(tmp_path):
    """It is read when it is whole; where its process was ended in it, what follows is read all the same."""
    made = proofs._Proofs("test_made.py", tmp_path, 1.0, threading.Event())
    (tmp_path / "output").touch()
    begin, end = '{"planned": "a"}\n{"begun": "a"}\n{"test": "a", "outc', 'ome": "proven", "seconds": 0.1}\n'
    (tmp_path / "told").write_text(begin)
    assert list(made._news()) == []
    (tmp_path / "told").write_text(begin + end + begin)
    assert [one["outcome"] for one in made._news()] == ["proven"]
    assert made._ended_by(-9)["test"] == "a"
    with (tmp_path / "told").open("a") as file:
        file.write('{"test": "b", "outcome": "failed", "seconds": 0.2}\n')
    assert [one["test"] for one in made._news()] == ["b"]


def test_files_run_side_by_side(tmp_path):
    meeting = "import pathlib, time\ndef test_meets():\n    here = pathlib.Path(__file__)\n"
    meeting += "    here.with_suffix('.here').touch()\n    end = time.monotonic() + 20\n"
    meeting += "    while len(list(here.parent.glob('*.here'))) < 2: assert time.monotonic() < end\n"
    for name in ("test_one.py", "test_other.py"):
        (tmp_path / name).write_text(meeting)
    found = list(prove([str(tmp_path)], 60, 30, at_once=2))
    assert [one["outcome"] for one in found] == ["proven"] * 2, found
    assert {Path(one["test"].split("::")[0]).name for one in found} == {"test_one.py", "test_other.py"}


def test_a_file_that_cannot_be_tried_leaves_the_others(tmp_path, monkeypatch):
    path, start = tmp_path / "test_made.py", proofs._Proofs._start
    path.write_text("def test_holds(): pass\n")

    def starts(one):
        if one._tests != str(path):
            raise OSError("too many processes")
        return start(one)

    monkeypatch.setattr(proofs._Proofs, "_start", starts)
    first, second = prove(["tests/other.py", str(path)], 60, 30)
    assert (first["test"], first["why"]) == ("tests/other.py", "OSError: too many processes")
    assert (first["outcome"], second["outcome"]) == ("failed", "proven")


def test_who_listens_no_more_ends_all(tmp_path):
    path = tmp_path / "test_made.py"
    path.write_text("import time\ndef test_first(): pass\ndef test_second(): time.sleep(60)\n")
    begin = time.monotonic()
    for one in prove([str(path)], 60, 50):
        assert one["outcome"] == "proven"
        break
    assert time.monotonic() - begin < 30


@pytest.mark.slow
def test_no_test_outlives_the_programme(tmp_path):
    """Where it is killed nothing clears away, and others are to have the GPU then."""
    path, told = tmp_path / "test_made.py", tmp_path / "pid"
    path.write_text(
        "import os, pathlib, time\ndef test_sleeps():\n"
        f"    pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n    time.sleep(60)\n"
    )
    program = f"from benchmarks.gpu.proofs import prove\nlist(prove([{str(path)!r}], 60, 50))"
    started = subprocess.Popen([sys.executable, "-c", program], cwd=proofs.ROOT)
    process = psutil.Process(int(until(lambda: told.exists() and told.read_text(), "a test")))
    started.kill()
    started.wait()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "its end", 10)

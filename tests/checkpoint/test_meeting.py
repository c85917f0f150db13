"""Threads that write a checkpoint together, while another run clears away what it takes for left over."""

from __future__ import annotations

import time

import pytest

from relaxcomm.checkpoint.meeting import Meeting
from relaxcomm.checkpoint.writing import Write, clear_away, prepare
from relaxcomm.errors import CheckpointError
from relaxcomm.network.transport import Membership


def test_another_run_that_saves_in_the_same_folder_is_told_of_at_once(tmp_path):
    place = prepare(tmp_path, 3, 2)
    write = Write(place, {}, {}, Membership(0, 2), 60.0)
    while not (place.partial / "meeting" / "content-0.told").exists():
        time.sleep(0.01)
    began = time.monotonic()
    clear_away(prepare(tmp_path, 5, 2))
    problem = write.wait()
    assert time.monotonic() - began < 20
    assert isinstance(problem, CheckpointError)
    told = f"{place.partial} was deleted meanwhile; does another run save in {tmp_path}? Give each its own"
    assert told in str(problem)


def test_who_has_something_to_tell_then_is_told_so_too(tmp_path):
    meeting = Meeting(tmp_path / "some.partial" / "meeting", 0, 2, 60.0)
    with pytest.raises(CheckpointError, match=r"some\.partial was deleted meanwhile"):
        meeting.tell("content", b"")


def test_who_gives_it_up_waits_no_more_for_a_rank_that_is_lost(tmp_path):
    meeting = Meeting(tmp_path, 0, 2, 60.0)
    meeting.tell("content", b"mine")
    meeting.leave()
    with pytest.raises(CheckpointError, match="it was given up"):
        meeting.hear("content")

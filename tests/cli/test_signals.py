"""What a launcher does with those that it started, when it ends."""

import multiprocessing

from relaxcomm.cli import signals


class Child:
    """Notes what is done with it."""

    def __init__(self, done):
        self._done = done

    def kill(self):
        self._done.append("kill")

    def join(self):
        self._done.append("join")


def test_all_are_killed_before_one_is_waited_for(monkeypatch):
    done = []
    found = iter([[], [Child(done), Child(done)]])
    monkeypatch.setattr(multiprocessing, "active_children", lambda: next(found))
    with signals.no_child_left():
        pass
    assert done == ["kill", "kill", "join", "join"], "or the others say that they have lost the first"

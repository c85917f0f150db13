"""What is ended when a process exits."""

from __future__ import annotations

import pytest

from tests.interpreters import run_interpreters

BEFORE = """
import atexit, gc
from relaxcomm.network.endings import at_exit, ended_at_exit
class Thing:
    pass
first = ended_at_exit(lambda thing: print("first", thing.name))
second = ended_at_exit(lambda thing: print("second", thing.name))
"""
AFTER = """
things = [Thing() for _ in range(3)]
for name, thing in zip("abc", things):
    thing.name = name
first.add(things[0]); second.add(things[1]); second.add(things[2])
things.pop()
"""
# As multiprocessing does in what it forks, from Python 3.13 on.
CLEARED = "atexit._clear()"


@pytest.mark.parametrize("between", ["", CLEARED], ids=["as it was", "handlers cleared"])
def test_those_that_are_left_are_ended_the_newest_set_first(between):
    script = f"{BEFORE}\n{between}\n{AFTER}\ndel thing\n"
    (done,) = run_interpreters(script)
    assert done.stdout.splitlines() == ["second b", "first a"]


def test_who_asks_twice_is_called_once():
    script = (
        "from relaxcomm.network.endings import at_exit\ndef say(): print('over')\nat_exit(say); at_exit(say)"
    )
    (done,) = run_interpreters(script)
    assert done.stdout == "over\n"

"""What is told: whole on a terminal, as it is elsewhere."""

import contextlib
import fcntl
import io
import os
import struct
import termios
from types import SimpleNamespace

import pytest

from relaxcomm.cli.exit_codes import warn
from relaxcomm.config import registry
from relaxcomm.system.telling import tell, wrapped

PATH = "/a/folder-of-long-name/and-one/more/relaxcomm.yaml"
WORDS = f"error: plan needs the time of a step: --step-seconds 0.1, or {PATH}"


def on_a_terminal(columns, act):
    """The lines that a terminal of that width gets."""
    reading, writing = os.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(writing, "w") as terminal, contextlib.redirect_stderr(terminal):
        act()
        terminal.flush()
        told = os.read(reading, 10_000).decode()
    os.close(reading)
    return told.splitlines()


def test_a_terminal_cuts_no_word():
    lines = on_a_terminal(40, lambda: tell(WORDS))
    assert lines == ["relaxcomm: error: plan needs the time of", "a step: --step-seconds 0.1, or", PATH]


def test_a_terminal_that_does_not_know_its_width_has_one_line():
    assert on_a_terminal(0, lambda: tell(WORDS)) == [f"relaxcomm: {WORDS}"]


def test_a_warning_too():
    def warns():
        warn(WORDS, UserWarning, registry.__file__, 1)

    lines = on_a_terminal(40, warns)
    assert (len(lines), lines[-1]) == (4, PATH)


@pytest.mark.parametrize(
    "stream", [io.StringIO(), SimpleNamespace(write=print), SimpleNamespace(isatty=lambda: True)]
)
def test_other_streams_have_one_line(stream):
    assert wrapped(2 * WORDS, stream) == 2 * WORDS


def test_lines_stay_apart():
    assert on_a_terminal(30, lambda: tell("one\n  two")) == ["relaxcomm: one", "  two"]

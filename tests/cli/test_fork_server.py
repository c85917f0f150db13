"""Workers are forked off a process that has imported what they need."""

import gc
import os
import subprocess
import sys

import pytest

from relaxcomm.cli.launcher import launch

IMPORTS = """
import os, threading, torch
asked = []
for name in ("init", "is_available", "device_count"):  # what makes a GPU unusable after a fork
    setattr(torch.cuda, name, lambda *args, name=name, **others: asked.append(name) or False)
import relaxcomm.cli.worker_imports
print(asked, len(os.listdir("/proc/self/task")) - {others})
"""


def variables() -> tuple[str | None, str | None, int]:
    return os.environ.get("BEFORE"), os.environ.get("AFTER"), os.getppid()


@pytest.mark.ranks
def test_workers_have_the_environment_of_their_launch(monkeypatch):
    monkeypatch.setenv("BEFORE", "there")
    monkeypatch.delenv("AFTER", raising=False)
    *first, server = launch(variables, 2)
    monkeypatch.delenv("BEFORE")
    monkeypatch.setenv("AFTER", "changed")
    *second, same_server = launch(variables, 2)
    assert (first, second) == (["there", None], [None, "changed"])
    assert server == same_server != os.getpid()


def collecting() -> tuple[bool, bool]:
    return gc.isenabled(), gc.get_freeze_count() > 100_000


@pytest.mark.ranks
def test_workers_collect_garbage_but_not_in_what_was_imported():
    assert launch(collecting, 2) == (True, True)


@pytest.mark.slow
def test_so_does_the_command_line():
    program = """
import gc, sys
from relaxcomm.cli import main
sys.argv = ["relaxcomm", "schema", "--help"]
try:
    main()
except SystemExit:
    print(gc.isenabled(), gc.get_freeze_count() > 100_000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True True"


@pytest.mark.slow
def test_the_server_opens_nothing_that_a_fork_breaks():
    def threads(source: str) -> str:
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    libraries = threads("import os, torch, numpy; print(len(os.listdir('/proc/self/task')))")
    assert threads(IMPORTS.format(others=libraries)) == "[] 0"

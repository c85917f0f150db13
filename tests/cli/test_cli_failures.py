"""Whatever goes wrong in whatever command is one readable block, and a traceback only if asked for."""

import importlib.metadata
import json
import os
import subprocess
import sys
import warnings

import pytest
import typer
from typer.testing import CliRunner

from relaxcomm import CommunicationError, ConfigError, Finding, config
from relaxcomm.cli.app import app, imported
from relaxcomm.cli.exit_codes import warn
from relaxcomm.config import registry
from tests.ranks import launch_script

MAIN = "from relaxcomm.cli import main; main()"
COMMANDS = {
    "demo": [],
    "train": ["nowhere.yaml"],
    "plan": ["nowhere.yaml", "--measure"],
    "join": ["127.0.0.1:29400"],
    "compare": ["nowhere.yaml", "--algorithms", "bsp"],
    "algorithms": [],
    "show": ["bsp"],
    "schema": [],
    "doctor": [],
    "top": [],
    "check": ["bsp"],
    "new-algorithm": ["mine"],
}


@pytest.fixture
def broken(monkeypatch):
    """Make what every command needs raise an error."""
    for name in COMMANDS:
        imported(name)  # now: what is imported while it is broken keeps what is broken

    def breaks(error: BaseException) -> None:
        def fail(*arguments, **options):
            raise error

        monkeypatch.setattr(registry, "algorithms", fail)
        monkeypatch.setattr(registry, "primitives", fail)
        monkeypatch.setattr(config, "load", fail)
        monkeypatch.setattr(config, "read_values", fail)
        monkeypatch.setattr("relaxcomm.doctor.machine.findings", fail)
        monkeypatch.setattr("relaxcomm.cli.top.Reader", fail)
        monkeypatch.setattr("relaxcomm.cli.invitation.reach", fail)

    return breaks


def test_every_command_is_here():
    assert set(typer.main.get_command(app).commands) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError("the disk is gone"), 1, "OSError: the disk is gone (at "),
        (ConfigError("two\nlines"), 2, "two\nlines"),
        (CommunicationError("rank 1 has left"), 1, "rank 1 has left"),
    ],
)
def test_one_block(name, error, code, message, broken):
    broken(error)
    done = CliRunner().invoke(app, [name, *COMMANDS[name]])
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(f"relaxcomm: error: {message}")
    hint = "relaxcomm: --traceback shows where it happened\n"
    assert done.stderr.endswith(hint) == (code == 1)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_traceback_if_asked_for(name, broken):
    broken(OSError("the disk is gone"))
    done = CliRunner().invoke(app, [name, *COMMANDS[name], "--traceback"])
    assert done.exit_code == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.splitlines()[-1].startswith("relaxcomm: error: OSError: the disk is gone")


@pytest.mark.parametrize("options", [[], ["--traceback"]], ids=" ".join)
def test_a_failure_that_no_line_has_raised_is_told_alone(options, monkeypatch):
    failed = [Finding("bsp", "loss", "is too large")]
    monkeypatch.setattr("relaxcomm.cli.plugins.findings", lambda *arguments: failed)
    done = CliRunner().invoke(app, ["check", "bsp", *options])
    assert (done.exit_code, done.stderr) == (1, "relaxcomm: error: 1 of 1 checks failed\n")


def test_a_fault_that_many_checks_meet_is_told_once(monkeypatch):
    met = [("loss", "is large"), ("bytes", None), ("rounds", "is large"), ("kinds", "are two")]
    found = [Finding("mine", check, fault) for check, fault in met] + [Finding("other", "loss", "is large")]
    monkeypatch.setattr("relaxcomm.cli.plugins.findings", lambda *arguments: found)
    done = CliRunner().invoke(app, ["check", "mine"])
    assert done.stdout.splitlines() == [
        "mine loss: FAILED: is large",
        "mine bytes: ok",
        "mine rounds: FAILED: as loss",
        "mine kinds: FAILED: are two",
        "other loss: FAILED: is large",
    ]
    assert done.stderr == "relaxcomm: error: 4 of 5 checks failed\n"


def test_an_interrupt_without_workers_tells_of_none(broken):
    broken(KeyboardInterrupt())
    done = CliRunner().invoke(app, ["check", "bsp"])
    assert (done.exit_code, done.stderr) == (130, "relaxcomm: interrupted\n")


SWALLOWING = """
import os, signal, sys

class Torch:
    def find_spec(self, name, *places):
        if name == "relaxcomm.cli.app":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Torch())
"""


def test_an_interrupt_during_imports_ends_the_command():
    """Also in torch, which takes any error for a NumPy that is not there."""
    command = [sys.executable, "-c", SWALLOWING + MAIN, "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("options", [[], ["--traceback"]], ids=" ".join)
def test_what_a_command_cannot_import_is_traced_if_asked_for(options):
    script = f"import sys; sys.modules['relaxcomm.cli.top'] = None; {MAIN}"
    done = subprocess.run([sys.executable, "-c", script, "top", *options], capture_output=True, text=True)
    assert done.returncode == 1
    assert ("Traceback" in done.stderr, "--traceback shows" in done.stderr) == (bool(options), not options)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_and_explains_every_option(name):
    done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "[[" not in done.stdout, "an argument that may be left out has one pair of brackets"
    assert "<bool>" not in done.stdout
    for parameter in imported(name).params:
        assert getattr(parameter, "help", None), parameter.name


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["alorithms"]], ids=" ".join)
def test_what_needs_no_torch_comes_at_once(arguments):
    look = f"import sys\ntry:\n    {MAIN}\nfinally:\n    print({{'torch', 'numpy'}} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", look, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_the_version():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"relaxcomm {importlib.metadata.version('relaxcomm')}\n")


def test_a_usage_error_is_bad_input_and_plain_off_a_terminal():
    (done,) = launch_script(MAIN, 1, arguments=["train", "quick.yaml", "--workers", "0"])
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert (
        last == "Error: Invalid value for '--workers': '0' is not allowed: write a whole number, 1 to 4,096"
    )
    assert done.stderr.isascii()


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "relaxcomm", "schema"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_terminal_that_knows_no_unicode_is_no_error():
    """Arrows become question marks; a schema stays the same JSON."""
    ascii_alone = "import sys; [one.reconfigure(encoding='ascii') for one in (sys.stdout, sys.stderr)]\n"
    said = {}
    for command in ("show diloco", "schema"):
        (done,) = launch_script(ascii_alone + MAIN, 1, arguments=command.split())
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        said[command] = done.stdout
    assert "delta" in said["show diloco"]
    assert json.loads(said["schema"])["$schema"]


def test_nobody_listens():
    """As after `>&-` in a shell."""
    deaf = "import sys; sys.stdout = sys.stderr = None\n"
    (done,) = launch_script(deaf + MAIN, 1, arguments=["--version"])
    assert done.returncode == 0


def test_warnings_of_our_own_are_one_line(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn_explicit("plug-in 'a' is left out", UserWarning, registry.__file__, 1)
        warnings.warn_explicit("not ours", UserWarning, "/elsewhere/file.py", 7)
    ours, other = capsys.readouterr().err.splitlines()
    assert ours == "relaxcomm: warning: plug-in 'a' is left out"
    assert other == "/elsewhere/file.py:7: UserWarning: not ours"


def test_a_composition_is_warned_of_once(tmp_path):
    file = tmp_path / "lossy.yaml"
    file.write_text("algorithm: {name: local_sgd, fragments: 2, compressor: {top_k: {density: 0.1}}}\n")
    (done,) = launch_script(MAIN, 1, arguments=["show", str(file), "--workers", "2"])
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("relaxcomm: warning: top_k(density=0.1) loses a part of what it codes for good")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device here is always full")
@pytest.mark.parametrize("arguments", [["--version"], ["schema"]], ids=" ".join)
def test_what_takes_no_output_is_told_in_one_line(arguments):
    command = [sys.executable, "-m", "relaxcomm", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = "relaxcomm: error: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)

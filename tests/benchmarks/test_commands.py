"""The commands by which the README of the benchmarks runs them."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
COMMANDS = re.findall(r"^    (?:sudo )?python (\S+ ?[\w.]*)", README.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command_finds_its_module_and_all_that_it_imports(command):
    flag, _, name = command.partition(" ")
    assert flag == "-m", "scripts find only what lies beside them"
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{name}.__main__")
    assert inspect.isfunction(module.main)

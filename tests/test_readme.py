"""What the README shows works as it stands."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from relaxcomm import Algorithm, check, config
from relaxcomm.config import registry
from relaxcomm.tasks import Task

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def block(language: str, containing: str) -> str:
    (found,) = [text for text in blocks(language) if containing in text]
    return found


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """A folder with the README's first configuration as relaxcomm.yaml."""
    (tmp_path / "relaxcomm.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_every_python_block_is_covered_below():
    shown = [
        block("python", text) for text in ("relaxcomm.attach", "-> Task", "-> Algorithm", "class damped")
    ]
    assert shown == blocks("python")


@pytest.mark.parametrize("index", range(len(blocks("yaml"))))
def test_yaml_blocks_load(index):
    assert isinstance(config.load(yaml.safe_load(blocks("yaml")[index])).algorithm, Algorithm)


def test_both_spellings_are_the_same_algorithm():
    named, spelt = (config.load(yaml.safe_load(text)).algorithm for text in blocks("yaml")[:2])
    assert named.rules == spelt.rules


def test_own_script(user_folder, capsys):
    names: dict[str, object] = {}
    exec(compile(block("python", "relaxcomm.attach"), "script.py", "exec"), names)
    assert names["engine"].statistics["steps"] == 3 * 16
    assert "'bytes_sent'" in capsys.readouterr().out


def test_own_task(user_folder):
    (user_folder / "myjob.py").write_text(block("python", "-> Task"))
    spec = importlib.util.spec_from_file_location("myjob", user_folder / "myjob.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    task = module.make(seed=0, width=32)
    assert isinstance(task, Task)
    with torch.no_grad():
        assert task.evaluate(task.model) > 0


def test_own_algorithm():
    names: dict[str, object] = {}
    exec(block("python", "-> Algorithm"), names)
    assert repr(names["patient"](steps=7)).startswith("Algorithm(patient: Rule(every(steps=7), deltas(")


def test_own_compressor(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_included", [])
    monkeypatch.setattr("sys.path", [*sys.path])
    file = tmp_path / "damping.py"
    file.write_text(block("python", "class damped") + "\nRELAXCOMM_PROTOCOL = 1\n")
    findings = check(file)
    registry.primitives.cache_clear()
    assert {finding.check for finding in findings} > {"messages", "memory", "state", "converges"}
    assert [str(finding) for finding in findings if finding.fault] == []


def test_algorithms_table_is_what_is_installed():
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", README, flags=re.MULTILINE)
    bundled = {name: entry for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm"}
    shown = {name: parameters.replace("`", "").strip() or "no parameters" for name, parameters in rows}
    assert shown == {name: entry.parameters for name, entry in bundled.items()}


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target

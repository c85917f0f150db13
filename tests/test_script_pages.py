"""What docs/scripts.md and docs/configuration.md show works as it stands."""

import importlib.util
import re

import pytest
import torch
import yaml

from relaxcomm import config
from relaxcomm.config import registry
from relaxcomm.tasks import Task
from tests.test_readme import ROOT

PAGES = "".join(
    (ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("configuration.md", "scripts.md")
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES, flags=re.MULTILINE | re.DOTALL)


def block(language: str, containing: str) -> str:
    (found,) = [text for text in blocks(language) if containing in text]
    return found


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """A folder with the first configuration as relaxcomm.yaml."""
    (tmp_path / "relaxcomm.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


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


def test_the_table_of_algorithms_is_what_is_installed():
    page = (ROOT / "docs" / "all-algorithms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\|(.*?)\|$", page, flags=re.MULTILINE)
    bundled = {name: entry for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm"}
    shown = {name: parameters.replace("`", "").strip() or "no parameters" for name, parameters in rows}
    assert shown == {name: entry.parameters for name, entry in bundled.items()}

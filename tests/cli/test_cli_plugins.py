"""A plug-in as a third party makes it: generated, installed elsewhere, named in YAML, trained, checked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaxcomm import ConfigError, check
from relaxcomm.cli.app import app
from tests.ranks import launch_script

ROOT = Path(__file__).parents[2]
TASK = """
import torch
from relaxcomm import Task

def make(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(96, 4)
    y = x.sum(1, keepdim=True)
    def loss(model, batch):
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return Task(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                train_data=torch.utils.data.TensorDataset(x, y), loss=loss,
                evaluate=lambda model: float(loss(model, (x, y))), metric="error",
                higher_is_better=False, epochs=4)
"""


INSTALLED = """
import sys
sys.path.insert(0, sys.argv[1])
from relaxcomm.cli.app import app
for number, command in enumerate((["algorithms"], ["check", "patient_part"])):
    print(end="---\\n" * number)
    app(command, standalone_mode=False)
"""


def run(folder, *arguments, **environment):
    command = [sys.executable, "-m", "relaxcomm", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A generated package, installed in a folder of its own; where, and what shows it to Python."""
    folder = tmp_path_factory.mktemp("third-party")
    done = CliRunner().invoke(app, ["new-algorithm", "patient", "--folder", str(folder / "patient")])
    assert done.exit_code == 0, done.stderr
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", "site", "./patient"], cwd=folder, check=True, capture_output=True)
    return folder, {"PYTHONPATH": str(folder / "site")}


def test_what_is_made_passes_as_it_is(made):
    """Its own tests check the folder, not installed."""
    folder, _ = made
    (code,) = (folder / "patient").glob("*/compressor.py")
    examples = ["--doctest-modules", str(code.parent)]
    tests = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "patient/tests", *examples]
    done = subprocess.run(tests, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"test_contract\[(\w+) ", done.stdout)) == {"patient", "patient_part"}


@pytest.mark.ranks
def test_it_is_found_by_its_name_and_trains(made):
    folder, environment = made
    (folder / "job.py").write_text(TASK)
    (folder / "relaxcomm.yaml").write_text(
        "algorithm: {name: patient, steps: 2}\ntask: job:make\nworkers: 3\n"
    )
    done = run(folder, "train", "relaxcomm.yaml", **environment)
    assert done.returncode == 0, done.stderr
    assert "patient" in done.stdout
    (done,) = launch_script(INSTALLED, 1, arguments=[environment["PYTHONPATH"]])
    assert done.returncode == 0, done.stderr
    algorithms, findings = (text.splitlines() for text in done.stdout.split("---\n"))
    assert any(line.split()[0] == "patient" for line in algorithms)
    assert findings
    assert all(re.search(r"patient_part .*: ok\. .+\.$", line) for line in findings), findings


def test_what_cannot_be_imported_is_an_exit_code(tmp_path):
    (tmp_path / "mine.py").write_text("import a_module_that_nobody_has")
    main = "from relaxcomm.cli import main; main()"
    (done,) = launch_script(main, 1, arguments=["check", str(tmp_path / "mine.py")])
    assert done.returncode == 2
    assert "a_module_that_nobody_has" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["nothere.py", "no/folder", "nothere/"])
def test_a_path_that_is_not_there_is_no_name(path):
    said = f"{path}: No such file or directory; give the path of one that is there"
    for command in ("check", "show"):
        done = CliRunner().invoke(app, [command, path])
        assert (done.exit_code, done.stderr) == (2, f"relaxcomm: error: {said}\n")
    with pytest.raises(ConfigError) as refused:
        check(path)
    assert str(refused.value) == said


def test_a_path_of_another_kind_is_told_what_takes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.py").touch()
    (tmp_path / "mine.yaml").touch()
    done = CliRunner().invoke(app, ["show", "two words.py"])
    assert (done.exit_code, "check takes paths: relaxcomm check 'two words.py'" in done.stderr) == (2, True)
    done = CliRunner().invoke(app, ["check", "mine.yaml"])
    assert (done.exit_code, "a file of Python, which ends in .py" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bsp", "is taken by relaxcomm"),
        ("Two Words", "lower-case"),
        ("class", "no name"),
        ("torch", "would hide the module torch ("),
        ("json", "would hide Python's own json; choose another name, such as my_json"),
        ("list", "would hide Python's own list"),
        ("algorithms", "would hide the module"),
        ("every", "is the name of a primitive"),
    ],
)
def test_bad_names_are_refused(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new-algorithm", name])
    assert done.exit_code == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_nothing_can_be_written_to_is_refused():
    done = CliRunner().invoke(app, ["new-algorithm", "mine", "--folder", "/dev/null/mine"])
    said = "relaxcomm: error: --folder: cannot write to the folder /dev/null/mine: "
    assert (done.exit_code, done.stderr.startswith(said)) == (2, True)


def test_what_is_told_to_do_next_can_be_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new-algorithm", "mine", "--folder", "two words"])
    assert done.stdout.splitlines()[-1] == "next: pip install -e 'two words'; relaxcomm check mine"


def test_nothing_is_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    done = CliRunner().invoke(app, ["new-algorithm", "mine"])
    assert done.exit_code == 2
    assert "is no empty folder" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    done = CliRunner().invoke(app, ["new-algorithm", "mine", "--folder", "mine/file"])
    assert (done.exit_code, "mine/file is there, and is no empty folder" in done.stderr) == (2, True)

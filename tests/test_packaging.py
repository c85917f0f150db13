"""The archives are complete, and what is installed from them works far from the repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.test_docs import blocks
from tests.test_readme import ROOT

pytestmark = pytest.mark.ranks

PLUGIN = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "my_package"
version = "1.0"
[tool.setuptools]
packages = ["my_package"]
"""
CONFIGURATION = """\
algorithm: {name: local_sgd, steps: 4}
task: {digits: {epochs: 1, hidden: [16]}}
backend: gloo
"""


def run(*command: str | Path, cwd: Path) -> str:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RANK", "WORLD_SIZE")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> tuple[Path, Path]:
    """The source archive, and the wheel that was built from it."""
    source = tmp_path_factory.mktemp("source") / "relaxcomm"
    out = tmp_path_factory.mktemp("dist")
    kept = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=kept)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=source)
    (archive,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory) -> Path:
    """The programs of a fresh environment that holds the wheel, and borrows only the dependencies."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("-packages")]
    (packages / "dependencies.pth").write_text("\n".join(borrowed))
    install(folder / "bin", archives[1])
    return folder / "bin"


def install(programs: Path, what: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check")
    run(*pip, "install", "--no-index", "--no-deps", "--no-build-isolation", what, cwd=what.parent)


def test_what_is_in_the_archives(archives):
    archive, wheel = archives
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
    assert {"relaxcomm/py.typed", "relaxcomm_algorithms/py.typed", "relaxcomm/tasks/demo.yaml"} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    sources = {
        f"relaxcomm/{path.relative_to(ROOT / 'relaxcomm')}" for path in (ROOT / "relaxcomm").rglob("*.py")
    }
    sources |= {f"relaxcomm_algorithms/{path.name}" for path in (ROOT / "algorithms").glob("*.py")}
    assert {name for name in held if name.endswith(".py")} == sources
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "CITATION.cff", "CHANGELOG.md", "constraints.txt", "tests/engine/harness.py"} <= held
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")} <= held


@pytest.mark.slow
def test_it_runs_and_trains_outside_the_repository(installed, tmp_path):
    where = run(installed / "python", "-c", "import relaxcomm; print(relaxcomm.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.parent))
    listed = run(installed / "relaxcomm", "algorithms", cwd=tmp_path)
    assert {"bsp", "local_sgd"} <= {line.split()[0] for line in listed.splitlines()}
    demo = run(installed / "relaxcomm", "demo", "--set", "task.digits.epochs=1", cwd=tmp_path).splitlines()
    begins = ["algorithm", "bsp", "local_sgd", "link:", "plot:", "report:"]
    assert [line.split()[0] for line in demo] == begins
    assert (tmp_path / "runs" / "demo.png").is_file()


@pytest.mark.slow
def test_a_third_partys_algorithm_is_found_by_its_name(installed, tmp_path):
    page = "docs/write/algorithm.md"
    (tmp_path / "my_package").mkdir()
    source = f"{blocks(page, 'python')[0]}\nRELAXCOMM_PROTOCOL = 2\n"
    (tmp_path / "my_package" / "__init__.py").write_text(source)
    (tmp_path / "pyproject.toml").write_text(PLUGIN + blocks(page, "toml")[0])
    install(installed, tmp_path)
    shown = run(installed / "relaxcomm", "show", "careful_start", cwd=tmp_path.parent)
    assert "provided_by  my_package" in shown.splitlines()
    (tmp_path / "relaxcomm.yaml").write_text(CONFIGURATION)
    command = (installed / "relaxcomm", "train", "relaxcomm.yaml", "--algorithm", "careful_start")
    row = run(*command, "--set", "algorithm.after_steps=7", cwd=tmp_path).splitlines()[-1]
    assert row.split()[0] == "careful_start"

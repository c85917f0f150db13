"""What a machine without a network is given lies beside what it has, and this checkout's code runs."""

from __future__ import annotations

import doctest
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import aims, bare, bundle

WHEEL = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRIES = "[relaxcomm.algorithms]\nmine = relaxcomm_algorithms.mine:mine\n"


def wheel(folder: Path) -> Path:
    """One of the right names, with code that is not this checkout's."""
    path = folder / "relaxcomm-9.9-py3-none-any.whl"
    about = "relaxcomm-9.9.dist-info"
    files = {
        "relaxcomm/__init__.py": "raise ImportError('older code')\n",
        "relaxcomm_algorithms/__init__.py": "",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: relaxcomm\nVersion: 9.9\n",
        f"{about}/WHEEL": WHEEL,
        f"{about}/entry_points.txt": ENTRIES,
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_entry_points_are_the_wheels_and_code_is_this_checkouts(tmp_path):
    site = tmp_path / "site"
    wheel(tmp_path)
    bare.install(tmp_path, site)
    assert (site / "relaxcomm-9.9.dist-info" / "entry_points.txt").read_text() == ENTRIES
    for name, source in bare.PACKAGES.items():
        assert (site / name).resolve() == source.resolve()
        assert (site / name / "__init__.py").exists()


def test_a_folder_without_wheels_says_how_to_make_them(tmp_path):
    with pytest.raises(SystemExit, match="make gpu-bundle"):
        bare.install(tmp_path, tmp_path / "site")


def test_what_cannot_be_installed_is_an_error(tmp_path):
    (tmp_path / "relaxcomm-9.9-cp27-cp27m-win32.whl").write_bytes(b"")
    with pytest.raises(SystemExit, match="this version of Python"):
        bare.install(tmp_path, tmp_path / "site")


def test_pytorch_is_the_machines_own():
    assert {"pydantic", "networkx", "pytest"} <= set(bundle.needed())
    assert not bundle.THERE.intersection(bundle.needed())


@pytest.mark.parametrize("module", [aims, bundle])
def test_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed

"""Puts the wheels that a machine without a network needs, beside its own PyTorch, into one folder.

    make gpu-bundle
    python -m benchmarks.gpu.bundle build/gpu-bundle --python-version 3.12

relaxcomm's own wheel is built; what it, its tests on a GPU and torchft need is downloaded for that version of
Python. PyTorch, Triton and NumPy are the machine's own.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TESTS_NEED = ("pytest", "pytest-timeout", "hypothesis")
TORCHFT = "torchft==0.2.0"
TORCHFT_NEEDS = ("opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk")
THERE = frozenset(("torch", "triton", "numpy"))
PLATFORMS = tuple(f"manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "1"))
"""pip takes exactly these."""


def needed() -> list[str]:
    """What relaxcomm says that it needs, but for what is there, and its tests.

    Example:
        >>> sorted({"torch", "rich"}.intersection(needed()))
        ['rich']
    """
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [*(name for one in declared if (name := Requirement(one).name) not in THERE), *TESTS_NEED]


def build(folder: Path) -> None:
    """relaxcomm's wheel, from a copy, so that nothing of an earlier build comes along."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "runs", "results", "*.egg-info", "__pycache__")
    with TemporaryDirectory() as made:
        source = Path(made) / "source"
        shutil.copytree(ROOT, source, ignore=left_out)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
        command += [str(folder.resolve()), str(source)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"relaxcomm's wheel could not be built:\n{done.stdout}")


def download(folder: Path, python_version: str, requirements: Iterable[str], *, alone: bool = False) -> None:
    """Wheels for a version of Python, with what they need unless they are to come alone."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python_version]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    command += ["--no-deps"] if alone else ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*command, "--dest", str(folder), *requirements], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="which is emptied first")
    parser.add_argument("--python-version", default="3.12", help="of the machine; default 3.12")
    arguments = parser.parse_args()
    folder, version = arguments.folder, arguments.python_version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build(folder)
    download(folder, version, [*needed(), *TORCHFT_NEEDS])
    download(folder, version, [TORCHFT], alone=True)  # it needs torch, which is there
    wheels = list(folder.glob("*.whl"))
    print(f"{len(wheels)} wheels, {sum(one.stat().st_size for one in wheels) / 1e6:.1f} MB: {folder}")


if __name__ == "__main__":
    main()

"""Runs a module of this folder where only Python and PyTorch are installed, and there is no network.

    python3 -m benchmarks.gpu.bare build/gpu-bundle benchmarks.gpu --limit-seconds 480

The wheels of `make gpu-bundle` go into a folder of their own, which comes before what the machine has;
nothing of the machine's is replaced. Entry points are the wheel's, code is that of this checkout.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PACKAGES = {"relaxcomm": ROOT / "relaxcomm", "relaxcomm_algorithms": ROOT / "algorithms"}


def install(wheels: Path, folder: Path) -> None:
    """The wheels in a folder that Python can look in.

    Raises: SystemExit if there is none, or pip cannot install them.
    """
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        raise SystemExit(f"{wheels} holds no wheels; make them where there is a network: make gpu-bundle")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-compile", "--no-cache-dir", "--target", str(folder), *found]
    if subprocess.run(command).returncode:
        raise SystemExit(f"pip could not install the wheels; was {wheels} made for this version of Python?")
    for name, source in PACKAGES.items():  # what is mended here is what runs
        shutil.rmtree(folder / name)
        (folder / name).symlink_to(source)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path, help="the folder of wheels")
    parser.add_argument("module", help="such as benchmarks.gpu")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="which the module takes")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="relaxcomm-gpu-") as folder:
        install(arguments.wheels, Path(folder))
        path = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", arguments.module, *arguments.arguments]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Kernels compile for a GPU, also on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.test_readme import ROOT

KERNELS = {
    *("_statistics", "_threshold", "_list", "_count", "_write"),
    *("_blocks", "_parts", "_pack", "_quantize", "_sum", "_select"),
}


def test_every_kernel_compiles(kernels, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiling"],
        cwd=ROOT,
        env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in sizes} == KERNELS
    assert all(int(size) > 0 for _, size in sizes)

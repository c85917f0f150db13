"""Kernels compile for a GPU, also on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.test_readme import ROOT

BOUND_BY_MEMORY = {"_statistics", "_count", "_write", "_blocks", "_pack", "_quantize"}
LARGEST = 400_000
"""Bytes of a program with what a debugger wants; one whose loops were unrolled for nothing had 550,000."""
KERNELS = BOUND_BY_MEMORY | {"_threshold", "_parts", "_scales", "_select", "_sum"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of a core, which on a busy machine has taken more than 200 s
def test_every_kernel_compiles(kernels, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiling"],
        cwd=ROOT,
        env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in made} == KERNELS
    assert all(0 < int(size) < LARGEST for _, size, *_ in made)
    assert {name for name, _, wide_reads, *_ in made if int(wide_reads)} >= BOUND_BY_MEMORY
    assert ["0", "0"] in [counts for name, _, _, *counts in made if name == "_sum"]
    short, long = (barriers for name, *_, barriers in made if name == "_statistics")
    assert short == long  # between threads no more passes of bfloat16 than of float32

"""The commands that docs/scripts.md and docs/configuration.md give, run as they stand in a user's folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from tests.network_namespaces import finish, hosts
from tests.test_script_pages import block, blocks

pytestmark = pytest.mark.ranks
STEPS = 3 * 256 // 16  # of the script, of all workers together


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "relaxcomm.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "script.py").write_text(block("python", "relaxcomm.attach"))
    return tmp_path


def command(beginning: str, **replaced: str) -> list[str]:
    """The command that begins so, with the programs of this environment."""
    (line,) = re.findall(
        rf"^\$ ({beginning}.*?)(?:\s+#.*)?$", "\n".join(blocks("console")), flags=re.MULTILINE
    )
    for shown, used in replaced.items():
        assert shown in line
        line = line.replace(shown, used)
    program, *arguments = shlex.split(line)
    return [str(Path(sys.executable).with_name(program)), *arguments]


def run(arguments: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["PET_MASTER_PORT"] = str(free_port())  # torchrun's own, so tests may run at once
    done = subprocess.run(
        arguments,
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def steps_of(output: str) -> list[int]:
    return [int(steps) for steps in re.findall(r"'steps': (\d+)", output)]


def test_plain_python(folder):
    assert steps_of(run(command("python script"), folder)) == [STEPS]


@pytest.mark.slow
def test_torchrun(folder):
    assert steps_of(run(command("torchrun --nproc-per-node"), folder)) == [STEPS // 4] * 4


@pytest.mark.slow
@pytest.mark.root
def test_two_hosts(folder):
    with hosts(2, rate="100mbit") as on:
        line = command(
            "torchrun --nnodes", host1=on[0].address, **{"--nproc-per-node 4": "--nproc-per-node 2"}
        )
        # Hosts know themselves by their name, which namespaces share.
        own = [{"PET_LOCAL_ADDR": h.address, "PET_RDZV_CONF": f"is_host={int(h is on[0])}"} for h in on]
        processes = [host.popen(line, names, folder) for host, names in zip(on, own, strict=True)]
        try:
            outputs = finish(processes, timeout=240)
        finally:
            for process in processes:
                process.kill()
    for output in outputs:
        assert steps_of(output) == [STEPS // 4] * 2


def test_own_task(folder):
    (folder / "myjob.py").write_text(block("python", "-> Task"))
    (folder / "relaxcomm.yaml").write_text(blocks("yaml")[0] + 'task: "myjob:make"\n')
    table = run(command("relaxcomm train"), folder)
    assert "local_sgd" in table
    assert "squared error" in table


@pytest.mark.slow
def test_comparing(folder):
    (folder / "myjob.py").write_text(block("python", "-> Task"))
    (folder / "relaxcomm.yaml").write_text('algorithm: bsp\ntask: "myjob:make"\n')
    table = run(command("relaxcomm compare"), folder)
    assert [
        line.split()[0] for line in table.splitlines() if line.split()[0] in ("bsp", "local_sgd", "diloco")
    ]

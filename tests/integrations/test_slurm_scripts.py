"""The batch scripts start what they say, and submitit's jobs attach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from tests.integrations.script import SCRIPT, check_trained
from tests.ranks import PATIENCE_SECONDS
from tests.slurm_variables import in_batch_script, in_task
from tests.test_readme import ROOT

submitit = pytest.importorskip("submitit")

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
SRUN = """#!{python}
import json, os, subprocess, sys
tasks = json.loads(os.environ["TASKS"])
command = [one for one in sys.argv[1:] if not one.startswith(("--cpus-per-task", "--kill-on-bad-exit"))]
started = [subprocess.Popen(command, env={{**os.environ, **task}}) for task in tasks]
sys.exit(max(one.wait() for one in started))
"""


@pytest.fixture
def sbatch(tmp_path):
    """Run a batch script as sbatch would, on a host that has srun and scontrol of ours."""
    found = tmp_path / "bin"
    found.mkdir()
    for name, text in {
        "srun": SRUN.format(python=sys.executable),
        "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
    }.items():
        (found / name).write_text(text)
        (found / name).chmod(0o755)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "relaxcomm.yaml").write_text(
        "algorithm: {name: local_sgd, steps: 4}\ntask: {digits: {epochs: 2, hidden: [16]}}\n"
    )

    def run(script, *arguments, tasks, nodes):
        port = free_port()
        job = port - 20_000 if "torchrun" in script else 7  # whose port follows from the job's number
        environment = {
            **os.environ,
            **in_batch_script(tasks, nodes, job),
            "PATH": os.pathsep.join([str(found), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "SLURM_CPUS_PER_TASK": "2",
            "SLURM_JOB_NODELIST": f"n[1-{nodes}]",
            "SLURM_NNODES": str(nodes),
            "WORKERS_PER_NODE": "2",
            "TASKS": json.dumps([in_task(rank, tasks, nodes, job) for rank in range(tasks)]),
        }
        if "torchrun" not in script:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return subprocess.run(
            [ROOT / "examples" / "slurm" / script, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("script", "command", "tasks"),
    [("train.sbatch", ["relaxcomm"], 4), ("torchrun.sbatch", ["-m", "relaxcomm"], 2)],
    ids=["train", "torchrun"],
)
def test_a_batch_script_trains_a_configuration(sbatch, script, command, tasks):
    ended = sbatch(script, *command, "train", "relaxcomm.yaml", tasks=tasks, nodes=2)
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["algorithm", "local_sgd"]


@pytest.mark.parametrize(
    ("script", "command", "tasks"),
    [("train.sbatch", ["python"], 4), ("torchrun.sbatch", [], 2)],
    ids=["train", "torchrun"],
)
def test_a_batch_script_trains_a_script(sbatch, script, command, tasks):
    ended = sbatch(script, *command, "script.py", tasks=tasks, nodes=2)
    assert ended.returncode == 0, ended.stderr
    check_trained(ended.stdout.splitlines(), 4)
    assert "relaxcomm: 4 ranks, bsp, gloo" in ended.stderr


def attached(port):
    """What a user's job does, in a task of submitit's."""
    os.environ["MASTER_PORT"] = port
    submitit.helpers.TorchDistributedEnvironment().export(overwrite=True)
    import torch

    import relaxcomm

    torch.manual_seed(int(os.environ["RANK"]))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, "bsp") as engine:
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return engine.world.size, model.weight.tolist()


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """Submitit's, which starts local processes in the place of Slurm's tasks."""
    places = [str(ROOT), str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
    made = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    made.update_parameters(nodes=1, tasks_per_node=3, timeout_min=8)
    return made


def test_submitit_starts_tasks_that_attach(executor):
    found = executor.submit(attached, str(free_port())).results()
    assert [size for size, _ in found] == [3, 3, 3]
    assert len({str(weight) for _, weight in found}) == 1


def test_submitit_starts_torchrun_on_each_node(executor, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    executor.update_parameters(tasks_per_node=2)
    place = f"127.0.0.1:{free_port()}"
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nnodes", "2", "--nproc-per-node", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", place]
    command = submitit.helpers.CommandFunction([*torchrun, str(tmp_path / "script.py")])
    lines = [line for out in executor.submit(command).results() for line in out.splitlines()]
    check_trained(lines, 4)

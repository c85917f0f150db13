"""A task of srun's knows its place, and a shell inside an allocation waits for nobody."""

import os

import pytest
import torch

from benchmarks.ports import free_port
from relaxcomm import ConfigError, config
from relaxcomm.monitoring.addresses import name_run
from relaxcomm.monitoring.metrics_settings import MetricsConfig
from relaxcomm.system.environment import JOIN, RANK_VARIABLES, launched
from relaxcomm.system.slurm import first_host, follow_srun, num_tasks, run_id, tasks_on, unused_tasks
from relaxcomm.training.devices import choose_device
from tests.ranks import launch_script
from tests.slurm_variables import in_batch_script, in_task


@pytest.fixture
def started(monkeypatch):
    """Start with these variables of Slurm's and no others."""

    def start(variables, **changes):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM_") and name not in (*RANK_VARIABLES, JOIN)
        }
        found = {name: value for name, value in {**variables, **changes}.items() if value is not None}
        monkeypatch.setattr(os, "environ", {**kept, **found})

    return start


def said():
    """What torchrun would have said."""
    follow_srun()
    return {name: os.environ.get(name) for name in RANK_VARIABLES}


def test_a_task_knows_its_place(started):
    started(in_task(3, 5, nodes=2, job=41))
    assert said() == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "21271",
    }


def test_tasks_of_one_host_meet_there(started):
    started(in_task(1, 2))
    assert said()["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize("step", ["0", "1"])
def test_all_tasks_of_a_step_and_no_others_have_one_port(started, step):
    ports = set()
    for rank in range(4):
        started(in_task(rank, 4, nodes=2), SLURM_STEP_ID=step)
        ports.add(said()["MASTER_PORT"])
    assert ports == {str(20_000 + 31 * 7 + int(step))}


def test_a_job_of_a_federation(started):
    started(in_task(1, 2), SLURM_JOB_ID=str(63 * 2**26 + 7), SLURM_STEP_ID="4294967290")
    assert 20_000 <= int(said()["MASTER_PORT"]) < 30_000


def test_what_a_user_exports_remains(started):
    started(in_task(1, 2), MASTER_ADDR="10.0.0.3", MASTER_PORT="29500", LOCAL_RANK="1")
    assert (said()["MASTER_ADDR"], said()["MASTER_PORT"]) == ("10.0.0.3", "29500")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        in_batch_script(8),
        in_task(0, 1),
        in_task(0, 4) | {JOIN: "10.0.0.3:29500"},
    ],
    ids=["no Slurm", "a batch script", "one task", "a worker that joins"],
)
def test_who_is_alone_is_told_nothing(started, variables):
    started(variables)
    before = dict(os.environ)
    follow_srun()
    assert os.environ == before
    assert launched().world_size == 1


def test_torchrun_inside_srun_is_believed(started):
    inside = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    started(in_task(1, 2, nodes=2) | inside)
    before = dict(os.environ)
    follow_srun()
    assert os.environ == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is '4', but srun says 2 (task 1 of 2); leave WORLD_SIZE out"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK is '0', but srun says 1"),
        ({"SLURM_PROCID": "2"}, "SLURM_PROCID is '2' and SLURM_STEP_NUM_TASKS is 2; tasks go from"),
        ({"SLURM_PROCID": None}, "SLURM_PROCID is None and"),
        ({"SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS is 'many'; it is a whole number"),
        ({"SLURM_JOB_ID": "9" * 5000}, "SLURM_JOB_ID is '9999"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "SLURM_STEP_TASKS_PER_NODE is '2(x', which does not say"),
        ({"SLURM_STEP_TASKS_PER_NODE": None}, "SLURM_STEP_TASKS_PER_NODE is ''"),
        ({"SLURM_NODEID": "3"}, "how many tasks node 3 has"),
        ({"SLURM_HET_SIZE": "2"}, "in a heterogeneous job Slurm tells a task about its own component alone"),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-"}, "names no host; export MASTER_ADDR"),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_DISTRIBUTION": "arbitrary"}, "--distribution=arbitrary"),
        ({"SLURM_PTY_PORT": "4711", "SLURM_TASK_PID": "1"}, "`srun --pty` with 2 tasks, of which only"),
    ],
)
def test_what_srun_does_not_say_so_is_refused(started, changes, says):
    started(in_task(1, 2), **changes)
    before = dict(os.environ)
    with pytest.raises(ConfigError) as caught:
        follow_srun()
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400
    assert os.environ == before


def test_a_terminal_of_the_task_itself_is_no_shell(started):
    started(in_task(0, 2), SLURM_PTY_PORT="4711", SLURM_TASK_PID=str(os.getpid()))
    assert said()["WORLD_SIZE"] == "2"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("host1", "host1"),
        ("host[1-3,7]", "host1"),
        ("host[007,9-12],other", "host007"),
        ("login,host[1-3]", "login"),
        ("rack[2-3]-node[05-09].site.org", "rack2-node05.site.org"),
        ("a[1-2][3-4]", "a13"),
        ("[1-4]", "1"),
        ("10.0.0.3", "10.0.0.3"),
    ],
)
def test_the_first_host(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    "nodes",
    [
        "",
        ",",
        "host[",
        "host[1-3",
        "host[]",
        "host[x]",
        "a b",
        "(null)",
        "hôst",
        "averyverylongname-" * 9 + "!",
    ],
)
def test_what_is_no_list_of_hosts(nodes):
    with pytest.raises(ConfigError, match="names no host"):
        first_host(nodes)


def test_tasks_a_host():
    assert [tasks_on(node, "2(x3),1,10") for node in range(5)] == [2, 2, 2, 1, 10]
    for wrong in ("", "2(x3)", "2,,2,3", "-1(x9)", "٣(x9)"):
        with pytest.raises(ConfigError, match="SLURM_STEP_TASKS_PER_NODE"):
            tasks_on(3, wrong)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (in_batch_script(8), "Slurm has allocated 8 tasks, and srun starts one on each"),
        (in_task(0, 1) | {"SLURM_NTASKS": "3"}, "Slurm has allocated 3 tasks"),
        (in_batch_script(1), None),
        (in_task(2, 8), None),
        (in_batch_script(8) | {"RANK": "0"}, None),
        ({}, None),
    ],
)
def test_tasks_that_nobody_uses_are_told_of(started, variables, says):
    started(variables)
    found = unused_tasks()
    assert found is says is None or says in found


def test_runs_are_named_after_the_step(started):
    started(in_task(0, 2, job=41))
    assert (num_tasks(), run_id()) == (2, "41.0")
    assert name_run(MetricsConfig(), "bsp") == "bsp-41.0"
    started(in_batch_script(2))
    assert run_id() is None


@pytest.mark.parametrize(
    ("variables", "device"),
    [
        (in_task(1, 2) | {"SLURM_GPUS_ON_NODE": "2"}, "cuda:0"),
        (in_task(1, 2) | {"SLURM_GPUS_ON_NODE": "1"}, "cpu"),
        (in_task(1, 2), "cpu"),
        (in_task(0, 1) | {"SLURM_GPUS_ON_NODE": "2"}, "cpu"),
    ],
    ids=["each task its own", "one for both", "none by Slurm", "workers inside one task"],
)
def test_a_task_may_see_its_own_gpu_alone(started, monkeypatch, variables, device):
    started(variables)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device(config.load({"algorithm": "bsp", "task": "digits"}), 2) == torch.device(device)


SCRIPT = """
import os, sys, torch, relaxcomm
torch.manual_seed(int(os.environ.get("SLURM_PROCID", "0")))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with relaxcomm.attach(model, optimizer, {"algorithm": "bsp", "timeout_seconds": 60}):
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(model.weight.tolist(), os.environ.get("LOCAL_RANK"))
"""


@pytest.mark.ranks
def test_a_script_meets_the_other_tasks():
    port = str(free_port())
    tasks = [in_task(rank, 3) | {"MASTER_PORT": port} for rank in range(3)]
    done = launch_script(SCRIPT, 3, environments=tasks)
    assert [one.returncode for one in done] == [0, 0, 0], done
    weights, places = zip(*(one.stdout.rsplit(maxsplit=1) for one in done), strict=True)
    assert len(set(weights)) == 1
    assert places == ("0", "1", "2")
    assert "relaxcomm: 3 ranks, bsp, gloo" in done[0].stderr


def test_a_batch_script_trains_alone_and_is_told():
    (done,) = launch_script(SCRIPT, 1, environments=[in_batch_script(3)], timeout=120)
    assert done.returncode == 0, done
    assert "alone: Slurm has allocated 3 tasks, and srun starts one on each" in done.stderr

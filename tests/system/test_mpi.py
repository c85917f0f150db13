"""Processes of mpirun's are told that nobody has told them where the others are."""

import os

import pytest
import torch
from typer.testing import CliRunner

from relaxcomm import ConfigError, attach
from relaxcomm.cli.app import app
from relaxcomm.cli.job import is_worker
from relaxcomm.system.environment import JOIN, RANK_VARIABLES
from relaxcomm.system.mpi import num_processes, unread_processes
from relaxcomm.system.slurm import follow_srun
from tests.slurm_variables import in_task

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "2"}


@pytest.fixture
def started(monkeypatch):
    """Start with these variables, and no others of a launcher's."""

    def start(variables):
        theirs = ("OMPI_", "PMI_", "SLURM_")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(theirs) and name not in (*RANK_VARIABLES, JOIN)
        }
        monkeypatch.setattr(os, "environ", {**kept, **variables})

    return start


@pytest.mark.parametrize(
    ("variables", "size", "export"),
    [
        (
            OPEN_MPI,
            4,
            "RANK=$OMPI_COMM_WORLD_RANK, WORLD_SIZE=$OMPI_COMM_WORLD_SIZE, "
            "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK, MASTER_ADDR",
        ),
        (MPICH, 4, "RANK=$PMI_RANK, WORLD_SIZE=$PMI_SIZE, LOCAL_RANK=$MPI_LOCALRANKID, MASTER_ADDR"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, 1, None),
        ({**OPEN_MPI, "RANK": "2", "WORLD_SIZE": "4"}, 4, None),
        ({**MPICH, JOIN: "10.0.0.3:29500"}, 4, None),
        ({}, 0, None),
    ],
)
def test_what_is_to_be_exported_is_told(started, variables, size, export):
    started(variables)
    found = unread_processes()
    assert num_processes() == size
    assert found is export is None or export in found


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH], ids=["Open MPI", "MPICH"])
def test_a_command_does_not_start_a_run_in_every_process(started, variables):
    started(variables)
    with pytest.raises(ConfigError, match="mpirun has started 4 processes, and none knows where"):
        is_worker()


def test_compare_is_not_sent_to_another_launcher(started):
    started(OPEN_MPI)
    done = CliRunner().invoke(app, ["compare", "job.yaml", "--algorithms", "bsp"])
    assert done.exit_code == 2
    assert "compare starts its own workers; call it without torchrun, srun or mpirun" in done.stderr
    assert "start them with torchrun" not in done.stderr


def test_who_trains_alone_is_told_of_the_others(started, capsys):
    started(MPICH)
    model = torch.nn.Linear(2, 1)
    attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "bsp").close()
    assert "1 rank, bsp, alone: mpirun has started 4 processes" in capsys.readouterr().err


def test_tasks_of_srun_are_no_processes_of_mpirun(started):
    """Over several hosts mpirun starts one task on each, which starts the processes there."""
    started({**in_task(1, 2, nodes=2), **OPEN_MPI})
    with pytest.raises(ConfigError, match="mpirun has started 4 processes"):
        follow_srun()
    started({**in_task(1, 2, nodes=2), "PMI_SIZE": "2", "PMI_RANK": "1"})
    assert is_worker(), "srun --mpi=pmi2 says the same as Slurm"

"""What Slurm says of this process, in the words of torchrun."""

from __future__ import annotations

import os
import re

from relaxcomm.errors import ConfigError
from relaxcomm.system.environment import JOIN, RANK_VARIABLES, whole_number
from relaxcomm.system.mpi import num_processes, unread_processes

_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below those that Linux gives to clients
_LAST_ID = 2**32 - 1  # a federation of clusters puts the cluster's number before the job's
_STEPS_A_JOB = 31  # whose ports differ from those of the next jobs


def follow_srun() -> None:
    """Set torchrun's variables in a task of srun's, which sets none; a launcher's own remain as they are.

    Raises: ConfigError for variables that contradict each other, or that do not say where rank 0 is.
    """
    if "RANK" in os.environ or JOIN in os.environ or num_tasks() < 2:
        return
    if num_processes() != num_tasks() and (said := unread_processes()) is not None:
        raise ConfigError(said)  # the tasks are mpirun's own daemons, one a host
    found = _as_torchrun()
    for name in RANK_VARIABLES[:4]:
        if (given := os.environ.get(name, found[name])) != found[name]:
            raise ConfigError(
                f"{name} is {given[:100]!r}, but srun says {found[name]} (task {found['RANK']} of "
                f"{num_tasks()}); leave {name} out, or start the processes with torchrun"
            )
    _check_terminal()
    os.environ.update({name: value for name, value in found.items() if name not in os.environ})


def num_tasks() -> int:
    """Tasks that srun has started with this process; 0 outside srun, in a batch script's own shell, too.

    Raises: ConfigError for a variable that Slurm has not set so.
    """
    return whole_number("SLURM_STEP_NUM_TASKS", 0)


def run_id() -> str | None:
    """JOB.STEP of the tasks that srun has started with this process, or None."""
    if not num_tasks() or "SLURM_JOB_ID" not in os.environ:
        return None
    return f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_STEP_ID', 0)}"


def gpus_on_node() -> int:
    """GPUs that Slurm has given to the tasks on this host together; 0 where there is no other task.

    Raises: ConfigError for a variable that Slurm has not set so.
    """
    return whole_number("SLURM_GPUS_ON_NODE", 0) if num_tasks() > 1 else 0


def unused_tasks() -> str | None:
    """What to say where Slurm has allocated several tasks, and srun has not started this process on them.

    Example:
        >>> unused_tasks() is None
        True
    """
    allocated = os.environ.get("SLURM_NTASKS", "")
    if "RANK" in os.environ or num_tasks() > 1 or not allocated.isdecimal() or int(allocated) < 2:
        return None
    return f"Slurm has allocated {allocated} tasks, and srun starts one on each: put srun before the command"


def first_host(nodes: str) -> str:
    """The first of the hosts in Slurm's notation.

    Raises: ConfigError for what is none.

    Example:
        >>> first_host("gpu-[007-012,020]-ib,login")
        'gpu-007-ib'
    """
    found = re.match(r"(?:[\w.-]|\[\d+(?:[,-]\d+)*\])+(?=,|$)", nodes, re.ASCII)
    if found is None:
        raise ConfigError(
            f"SLURM_STEP_NODELIST is {nodes[:100]!r}, which names no host; export MASTER_ADDR, the name or "
            "address of the host of task 0"
        )
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", found[0])


def tasks_on(node: int, tasks_per_node: str) -> int:
    """Tasks on a host, from Slurm's list of how many each one has.

    Raises: ConfigError for a list that has no such place.

    Example:
        >>> [tasks_on(node, "4(x2),3") for node in range(3)]
        [4, 4, 3]
    """
    left = node
    for one in tasks_per_node.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", one, re.ASCII)
        if found is None:
            break
        if left < (repeats := int(found[2] or 1)):
            return int(found[1])
        left -= repeats
    raise ConfigError(
        f"SLURM_STEP_TASKS_PER_NODE is {tasks_per_node[:100]!r}, which does not say how many tasks node "
        f"{node} has (SLURM_NODEID); Slurm sets both: start with srun or torchrun"
    )


def _as_torchrun() -> dict[str, str]:
    """What torchrun would have said to this task.

    Raises: ConfigError.
    """
    if "SLURM_HET_SIZE" in os.environ:
        raise ConfigError(
            "in a heterogeneous job Slurm tells a task about its own component alone; start the processes by "
            "torchrun: srun --ntasks-per-node 1 torchrun --nnodes …"
        )
    rank, size = whole_number("SLURM_PROCID", 0), num_tasks()
    if rank >= size or "SLURM_PROCID" not in os.environ:
        raise ConfigError(
            f"SLURM_PROCID is {os.environ.get('SLURM_PROCID')!r} and SLURM_STEP_NUM_TASKS is {size}; tasks "
            "go from 0 to SLURM_STEP_NUM_TASKS - 1, and srun sets both"
        )
    node = whole_number("SLURM_NODEID", 0)
    job, step = (whole_number(name, 0, most=_LAST_ID) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(whole_number("SLURM_LOCALID", 0)),
        "LOCAL_WORLD_SIZE": str(tasks_on(node, os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR") or _first_address(),
        "MASTER_PORT": str(_FIRST_PORT + (_STEPS_A_JOB * job + step) % _NUM_PORTS),
    }


def _first_address() -> str:
    """Where the others reach task 0.

    Raises: ConfigError where Slurm does not say which host it is on.
    """
    if whole_number("SLURM_STEP_NUM_NODES", 0) == 1:
        return "127.0.0.1"
    if "arbitrary" in os.environ.get("SLURM_DISTRIBUTION", ""):
        raise ConfigError(
            "with --distribution=arbitrary Slurm does not tell all tasks where task 0 is; export "
            "MASTER_ADDR, the name or address of its host, before srun"
        )
    return first_host(os.environ.get("SLURM_STEP_NODELIST", ""))


def _check_terminal() -> None:
    """Refuse a shell in which only the first task takes commands: the others would never come.

    Raises: ConfigError.
    """
    if "SLURM_PTY_PORT" in os.environ and os.environ.get("SLURM_TASK_PID") != str(os.getpid()):
        raise ConfigError(
            f"this is a terminal of `srun --pty` with {num_tasks()} tasks, of which only the first takes "
            "commands; start the shell with --ntasks 1 or by salloc, and the training in it by srun"
        )

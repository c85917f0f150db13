"""What mpirun says of this process, in words that torch does not read."""

from __future__ import annotations

import os

from relaxcomm.system.environment import JOIN, whole_number

_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
)
"""The variables of Open MPI, and of MPICH and its kin."""


def num_processes() -> int:
    """Processes that mpirun has started with this one; 0 outside mpirun.

    Raises: ConfigError for a variable that mpirun has not set so.
    """
    return next((whole_number(size, 0) for size, _, _ in _VARIABLES if size in os.environ), 0)


def unread_processes() -> str | None:
    """What to say where mpirun has started several processes, and says so in its own variables alone.

    Raises: ConfigError for a variable that mpirun has not set so.

    Example:
        >>> unread_processes() is None
        True
    """
    if "RANK" in os.environ or JOIN in os.environ or num_processes() < 2:
        return None
    size, rank, local = next(names for names in _VARIABLES if names[0] in os.environ)
    return (
        f"mpirun has started {num_processes()} processes, and none knows where the others are: start "
        f"them with torchrun, or export in each RANK=${rank}, WORLD_SIZE=${size}, LOCAL_RANK=${local}, "
        "MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port there)"
    )

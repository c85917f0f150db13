"""What a launcher such as torchrun says through environment variables, checked before it is believed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from relaxcomm.errors import ConfigError

JOIN = "RELAXCOMM_JOIN"
"""HOST:PORT of the store of a run that this process joins; then it has no rank of a launcher's."""
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher tells a process of its place."""
MEETING_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""By which ranks meet."""
LAST_PORT = 65_535
_MOST = 10**9 - 1
_LAUNCHER = "a launcher such as torchrun or srun sets it"


@dataclass(frozen=True)
class Launch:
    """This process among the others of its job; alone, without a launcher.

    Args:
        rank: of this process, 0 to `world_size` - 1.
        world_size: number of processes.
        local_rank: among those of this host.
        local_world_size: number of processes on this host.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def launched() -> Launch:
    """This process as RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE describe it.

    Raises: ConfigError for one that is no number, or a rank that the job or host does not have.

    Example:
        >>> launched().world_size
        1
    """
    found = Launch(
        rank=whole_number("RANK", 0),
        world_size=whole_number("WORLD_SIZE", 1, least=1),
        local_rank=whole_number("LOCAL_RANK", 0),
        local_world_size=whole_number("LOCAL_WORLD_SIZE", 1, least=1),
    )
    if found.rank >= found.world_size:
        raise ConfigError(
            f"RANK is {found.rank} and WORLD_SIZE is {found.world_size}; ranks go from 0 to WORLD_SIZE - 1"
        )
    if found.local_rank >= found.local_world_size and "LOCAL_WORLD_SIZE" in os.environ:
        raise ConfigError(
            f"LOCAL_RANK is {found.local_rank} and LOCAL_WORLD_SIZE is {found.local_world_size}; local ranks "
            "go from 0 to LOCAL_WORLD_SIZE - 1"
        )
    return found


def missing_variables() -> list[str]:
    """Those of `MEETING_VARIABLES` that are not set."""
    return [name for name in MEETING_VARIABLES if name not in os.environ]


def check_rendezvous() -> None:
    """Refuse what would let this process wait for others at a place that cannot be.

    Raises: ConfigError.
    """
    if missing := missing_variables():
        raise ConfigError(
            f"WORLD_SIZE is {launched().world_size}, but {', '.join(missing)} is not set; start with "
            "torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together"
        )
    launched()
    whole_number("MASTER_PORT", 1, least=1, most=LAST_PORT)
    address = os.environ["MASTER_ADDR"]
    if not address.isprintable() or not address.isascii() or not address or " " in address:
        raise ConfigError(
            f"MASTER_ADDR is {address[:100]!r}; it is the name or address of rank 0's host, and {_LAUNCHER}"
        )


def address_to_join() -> str | None:
    """HOST:PORT of the store of a run that this process joins, or None."""
    return os.environ.get(JOIN) or None


def restart_count() -> int:
    """How often torchrun has started this host's workers again.

    Raises: ConfigError for a variable that no launcher has set so.
    """
    return whole_number("TORCHELASTIC_RESTART_COUNT", 0)


def launcher_holds_store() -> bool:
    """Whether the launcher holds the store of a job, and not rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def attempt_in_store() -> int:
    """Tells apart attempts of torchrun's that share a store; 0 where each has a store of its own.

    There hosts may have counted differently: one whose workers have not failed does not count.

    Raises: ConfigError for a variable that no launcher has set so.
    """
    return restart_count() if launcher_holds_store() else 0


def whole_number(name: str, default: int, *, least: int = 0, most: int = _MOST) -> int:
    """The number in an environment variable.

    Raises: ConfigError for anything else.
    """
    text = os.environ.get(name)
    if text is None:
        return default
    digits = text.lstrip("0") or "0" if text.isascii() and text.isdecimal() else ""
    if not 0 < len(digits) <= len(str(most)) or not least <= int(digits) <= most:
        raise ConfigError(
            f"{name} is {text[:100]!r}; it is a whole number from {least} to {most}, and {_LAUNCHER}"
        )
    return int(digits)

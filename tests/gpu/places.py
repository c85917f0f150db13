"""Where bodies of tests run: on ranks that share a GPU and talk over NCCL, on a pretended GPU, or over Gloo.

A body is `body(place, *args)` at module level; it returns something that can be pickled, and written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from benchmarks.gpu.ranks import share_gpu
from relaxcomm.testing import PretendGpu
from tests.network.nccl_streams import streams_checked
from tests.network.pretended_nccl import BetweenGpus, pretended
from tests.ranks import Finished, launch_script, run_ranks

HAS_GPU = torch.cuda.is_available()
GPU = "nccl" if HAS_GPU else "pretended"
"""A GPU as far as this machine has one."""
DEVICE = "nccl" if HAS_GPU else "gloo"
"""For what no GPU can be pretended for."""
LIMIT_SECONDS = 90


@dataclass(frozen=True)
class Place:
    """One rank: of how many, and on which device; the pretended GPU, if it is one."""

    rank: int
    size: int
    device: torch.device
    pretended: PretendGpu | None = None


@contextmanager
def at(where: str, rank: int, size: int) -> Iterator[Place]:
    """This process as a rank on a device."""
    if where == "gloo":
        yield Place(rank, size, torch.device("cpu"))
    elif where == "nccl":
        yield Place(rank, size, share_gpu(rank))
    elif where == "streams":
        with streams_checked() as gpu:
            yield Place(rank, size, torch.device("cuda", 0), gpu)
    else:
        with pretended(BetweenGpus), PretendGpu() as gpu:
            yield Place(rank, size, torch.device("cuda", 0), gpu)


def run(body: Callable[..., Any], size: int, *args: Any, where: str = GPU) -> list[Any]:
    """What each rank returns; the processes stay for the next body, unless one fails."""
    return run_ranks(_in_rank, size, where, size, body, args, timeout=LIMIT_SECONDS)


def _in_rank(rank: int, where: str, size: int, body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    with at(where, rank, size) as place:
        return body(place, *args)


SCRIPT = """
import json, os, sys
sys.path.insert(0, ".")
import torch.distributed as dist
from {module} import {name}
from tests.gpu.places import at
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with at({where!r}, rank, size) as place:
    print(json.dumps({name}(place, *{args!r})), flush=True)
os._exit(0)  # a default group would wait for ranks that have failed
"""


def launch(
    body: Callable[..., Any], size: int, *args: Any, where: str = GPU, **options: Any
) -> list[Finished]:
    """Run it on processes of its own, which have no default group yet."""
    source = SCRIPT.format(module=body.__module__, name=body.__name__, where=where, args=args)
    return launch_script(source, size, LIMIT_SECONDS, **options)


def told(done: list[Finished]) -> list[Any]:
    """What every rank printed last."""
    assert all(one.returncode == 0 for one in done), "\n".join(one.stderr for one in done)
    return [json.loads(one.stdout.splitlines()[-1]) for one in done]


def flat(model: torch.nn.Module) -> list[float]:
    """All parameters, one behind the other."""
    values: list[float] = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().tolist()
    return values


def costly(*values: Any) -> Any:
    """A parameter that is left to `make test-slow` where there is no GPU."""
    return pytest.param(*values, marks=() if HAS_GPU else pytest.mark.slow)

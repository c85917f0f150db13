"""A pool of real Gloo processes, kept alive for the test session and respawned after a failure."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.ports import free_port

PATIENCE_SECONDS = 240  # on a busy machine starting alone takes a minute; what hangs is known by that
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class RankError(Exception):
    """At least one rank raised; `errors` has `(type name, message)` by rank."""

    def __init__(self, errors: dict[int, tuple[str, str]], traces: list[str]) -> None:
        self.errors = errors
        super().__init__("\n".join(traces))


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    debug: bool = False,
    timeout: float = PATIENCE_SECONDS,
) -> list[Any]:
    """Run `function(rank, *args)` on every rank of a pool; a hang is killed and is a failure."""
    key = (world_size, debug)
    if key not in _pools:
        _pools[key] = _Pool(world_size, debug)
    try:
        return _pools[key].run(function, args, timeout)
    except RankError as error:
        # A refusal on every rank leaves all of them at the same place; anything else may not.
        refused = all(kind in ("ConfigError", "CompositionError") for kind, _ in error.errors.values())
        if not refused or len(error.errors) < world_size:
            _pools.pop(key).kill()
        raise
    except BaseException:
        _pools.pop(key).kill()
        raise


@dataclass
class Finished:
    """What a process left behind; it has no return code if it was not waited for."""

    returncode: int | None
    stdout: str
    stderr: str


def launch_script(
    source: str,
    world_size: int,
    timeout: float = PATIENCE_SECONDS,
    *,
    arguments: Sequence[str] = (),
    never_end: Collection[int] = (),
    environments: Sequence[Mapping[str, str]] | None = None,
) -> list[Finished]:
    """Run a script on processes of its own with torchrun's environment variables.

    Args:
        source: of the script.
        world_size: how many processes.
        timeout: in which all must have ended.
        arguments: which it has in `sys.argv`.
        never_end: ranks that are not waited for, and of which nothing is returned.
        environments: of each rank, in the place of torchrun's variables.
    """
    port, deadline = str(free_port()), time.monotonic() + timeout
    with TemporaryDirectory() as folder:
        processes = []
        for rank in range(world_size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            if environments is not None:
                own = dict(environments[rank])
            processes.append(start_script(source, arguments, own, f"{folder}/{rank}"))
        try:
            for rank in set(range(world_size)) - set(never_end):
                processes[rank].join(max(1, deadline - time.monotonic()))
                if processes[rank].exitcode is None:
                    raise TimeoutError(f"rank {rank} did not end in {timeout:g} s")
        finally:
            codes = [process.exitcode for process in processes]
            for process in processes:
                process.kill()
                process.join()
        texts = [[Path(f"{folder}/{rank}.{end}").read_text() for end in _ENDS] for rank in range(world_size)]
    done = [Finished(code, *text) for code, text in zip(codes, texts, strict=True)]
    return [one for rank, one in enumerate(done) if rank not in never_end]


_ENDS = ("out", "err")


def start_script(
    source: str, arguments: Sequence[str], environment: Mapping[str, str], place: str
) -> ForkServerProcess:
    """Start a script.

    Args:
        source: of the script.
        arguments: which it has in `sys.argv`.
        environment: beside the variables of this process.
        place: where it writes, with `.out` and `.err` behind it.
    """
    env = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
    process = _server().Process(target=_run_script, args=(source, arguments, env, place))
    process.start()
    return process


def _run_script(source: str, arguments: Sequence[str], env: dict[str, str], place: str) -> None:
    """What a fresh interpreter would do with the script."""
    gc.freeze()  # what the server has imported is no garbage, and to look through it copies its memory
    for number, end in enumerate(_ENDS, start=1):
        os.dup2(os.open(f"{place}.{end}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *arguments]
    torch.set_num_threads(1)
    try:
        exec(compile(source, "<script>", "exec"), {"__name__": "__main__"})  # a test's own
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


@functools.cache
def _server() -> ForkServerContext:
    """Forks ranks off a process that has imported what all need and done nothing else: they start at once."""
    context = get_context("forkserver")
    ours = ("relaxcomm.engine", "relaxcomm.checks", "relaxcomm.checkpoint", "relaxcomm.cli.compare")
    context.set_forkserver_preload(["torch._dynamo", *ours, "tests.engine.harness", "tests.frozen"])
    return context


class _Pool:
    def __init__(self, world_size: int, debug: bool) -> None:
        context, port = _server(), free_port()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, world_size, port, debug), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, args))
        deadline = time.monotonic() + timeout
        replies: dict[int, Any] = {}
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0, deadline - time.monotonic())):
                raise TimeoutError(f"rank {rank} did not answer in {timeout:g} s{self._answered(replies)}")
            try:
                replies[rank] = pipe.recv()
            except EOFError:
                raise RuntimeError(f"the process of rank {rank} died") from None
        failed = {rank: reply[1] for rank, reply in replies.items() if not reply[0]}
        if failed:
            traces = [f"rank {rank}: {trace}" for rank, (_, _, trace) in failed.items()]
            raise RankError({rank: (kind, text) for rank, (kind, text, _) in failed.items()}, traces)
        return [replies[rank][1] for rank in range(len(self._pipes))]

    def _answered(self, replies: dict[int, Any]) -> str:
        """Of those that did answer, which, and what failed there: it may be why another waits."""
        for rank, pipe in enumerate(self._pipes):
            if rank not in replies and pipe.poll(0):
                replies[rank] = pipe.recv()
        failed = [f"\nrank {rank}: {reply[1][2]}" for rank, reply in sorted(replies.items()) if not reply[0]]
        return f"; answered: {sorted(replies)}{''.join(failed)}"

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(5)


_pools: dict[tuple[int, bool], _Pool] = {}


@atexit.register
def _kill_all() -> None:
    for pool in _pools.values():
        pool.kill()


def _serve(pipe: Connection, rank: int, world_size: int, port: int, debug: bool) -> None:
    gc.freeze()
    sys.path.insert(0, _ROOT)
    if debug:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(
        "gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=PATIENCE_SECONDS)
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            reply = (True, function(rank, *args))
        except BaseException as error:  # reported to the test
            reply = (False, (type(error).__name__, str(error), traceback.format_exc()))
        pipe.send(reply)

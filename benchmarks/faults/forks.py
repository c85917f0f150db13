"""Processes forked off one that has imported what all need: they begin at once."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed import TCPStore

from benchmarks.lab.network import DEVICE, Host

_CLONE_NEWNET, _CLONE_NEWUTS = 0x40000000, 0x04000000


@functools.cache
def _server() -> ForkServerContext:
    context = get_context("forkserver")
    ours = ("relaxcomm.engine", "relaxcomm.checkpoint", "benchmarks.faults.worker")
    context.set_forkserver_preload(["torch._dynamo", "sklearn.datasets", *ours])
    return context


def start(
    function: Callable[..., None], *arguments: Any, host: Host | None = None, errors: Path | None = None
) -> BaseProcess:
    """Run a function in a process of its own.

    Args:
        function: what it does.
        arguments: of the function.
        host: where it lives; None for this one.
        errors: where its standard error goes.
    """
    process = _server().Process(target=_begin, args=(function, arguments, host, errors), daemon=True)
    process.start()
    return process


def _begin(
    function: Callable[..., None], arguments: tuple[Any, ...], host: Host | None, errors: Path | None
) -> None:
    if errors is not None:
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    if host is None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    else:
        _move_to(host)
    try:
        function(*arguments)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


def _move_to(host: Host) -> None:
    """Live on a host: its network, and a name of its own, so that nobody takes the ranks for neighbours."""
    system = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{host.namespace}") as namespace:
        if system.setns(namespace.fileno(), _CLONE_NEWNET) or system.unshare(_CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), f"cannot move to {host.namespace}")
    socket.sethostname(host.namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE


class StoreKeeper(AbstractContextManager["StoreKeeper"]):
    """Keeps the ranks' store in a process that does not train, as a launcher does.

    Args:
        host: where it lives; None for this one.
    """

    def __init__(self, host: Host | None = None) -> None:
        self._pipe, theirs = _server().Pipe()
        self._process = start(_keep_store, theirs, host=host, errors=Path(os.devnull))
        theirs.close()
        self.address = host.address if host else "127.0.0.1"
        self.port = int(self._pipe.recv())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(5)
        self._process.kill()


def _keep_store(pipe: Connection) -> None:
    store = TCPStore("0.0.0.0", 0, None, True, wait_for_workers=False)
    pipe.send(store.port)
    try:
        pipe.recv()
    except EOFError:
        return

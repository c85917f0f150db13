"""Whole interpreters, for what happens when one ends, forked off one that has imported relaxcomm."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ranks import _ROOT, PATIENCE_SECONDS, Finished

# Its children leave the loop and end as `python -c` does, whose program they are.
_SERVER = """
import gc, json, os, sys
import torch, torch._dynamo, relaxcomm.engine

gc.freeze()  # to look through the imports at its end takes each a second
for line in sys.stdin:
    task, children = json.loads(line), []
    for place, environment in task["environments"]:
        children.append(os.fork())
        if not children[-1]:
            break
    if not children[-1]:
        for number, name in enumerate((os.devnull, place + ".out", place + ".err")):
            os.dup2(os.open(name, os.O_CREAT | os.O_RDWR | os.O_APPEND), number)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["-c", *task["arguments"]]
        program = compile(task["source"], "<string>", "exec")
        del line, task, children, place, environment, number, name
        break
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
else:
    sys.exit()
exec(program)
"""


def run_interpreters(
    source: str,
    arguments: Sequence[str] = (),
    environments: Sequence[Mapping[str, str]] = ({},),
    timeout: float = PATIENCE_SECONDS,
) -> list[Finished]:
    """Run a script in interpreters of their own, at the same time.

    Args:
        source: of the script; `gc.unfreeze()` in it, where what imports made is to be garbage, too.
        arguments: which it has in `sys.argv`.
        environments: of each, beside the variables of this process.
        timeout: in which all must have ended; else they are killed.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        places = [f"{folder}/{number}" for number in range(len(environments))]
        envs = [{**os.environ, **one} for one in environments]
        task = {"source": source, "arguments": arguments, "environments": [*zip(places, envs, strict=True)]}
        server.stdin.write(json.dumps(task) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            _end(server)
            raise TimeoutError(f"not all interpreters ended in {timeout:g} s")
        codes = json.loads(server.stdout.readline())
        texts = [[Path(f"{place}.{end}").read_text() for end in ("out", "err")] for place in places]
    return [Finished(code, *text) for code, text in zip(codes, texts, strict=True)]


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that they are forked off."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], cwd=_ROOT, env=env, text=True, start_new_session=True, **pipes
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    """End it and all that it has forked."""
    _server.cache_clear()
    if server.poll() is None:
        os.killpg(server.pid, 9)
        server.communicate()

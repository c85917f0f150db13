"""Functions with a mistake in them, to show that a test would find it."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def mutated(path: str, right: str, wrong: str) -> Iterator[None]:
    """A function with another text.

    Args:
        path: of the function, "module:name" or "module:class.name".
        right: what stands in it.
        wrong: what takes its place.
    """
    module_name, _, name = path.partition(":")
    module = importlib.import_module(module_name)
    *classes, function = name.split(".")
    owner: Any = module if not classes else getattr(module, classes[0])
    source = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert source.count(right) == 1, f"{right!r} is {source.count(right)} times in {path}"
    made: dict[str, Any] = {}
    code = "from __future__ import annotations\n" + source.replace(right, wrong)
    exec(compile(code, f"<mutant of {path}>", "exec"), vars(module), made)
    with patch.object(owner, function, made[function]):
        yield

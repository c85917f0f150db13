"""Arguments out of docstrings' examples."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from relaxcomm.config.json_schema import parameters_schema
from relaxcomm.errors import ConfigError
from relaxcomm.fields import docstrings


def from_example(name: str, target: object, values: Mapping[str, Any]) -> dict[str, Any]:
    """Required arguments that were not given, as the docstring's example has them.

    Raises: ConfigError if it has none.
    """
    missing = [one for one in parameters_schema(target).get("required", ()) if one not in values]
    if not missing:
        return {}
    example = docstrings.read(target).example
    prompts = [line[4:] for line in example.splitlines() if line.startswith((">>> ", "... "))]
    for node in ast.walk(ast.parse("\n".join(prompts))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            shown = {keyword.arg: keyword.value for keyword in node.keywords}
            if shown.keys() >= set(missing):
                return {one: _as_yaml(shown[one]) for one in missing}
    raise ConfigError(
        f"{name} needs {', '.join(missing)}, of which its docstring has no example; give a value, or let the "
        f"docstring's Example call {name}({', '.join(f'{one}=…' for one in missing)})"
    )


def taken_in_words(taken: Mapping[str, Any]) -> str:
    """What was taken from an example.

    Example:
        >>> taken_in_words({"after_steps": 100})
        'after_steps=100, as in the example'
    """
    return f"{', '.join(f'{name}={value!r}' for name, value in taken.items())}, as in the example"


def _as_yaml(node: ast.expr) -> Any:
    """A literal, or calls of primitives as YAML would spell them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        arguments = {one.arg: _as_yaml(one.value) for one in node.keywords}
        return {node.func.id: arguments} if arguments else node.func.id
    if isinstance(node, ast.List | ast.Tuple):
        return [_as_yaml(item) for item in node.elts]
    return ast.literal_eval(node)

"""A parameter's type, range and default in words, from its JSON Schema."""

from __future__ import annotations

import json

from relaxcomm.cli.tree import Node
from relaxcomm.config.json_schema import Schema, parameters_schema

_RANGES = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "minItems": "of length at least",
}


def parameter_nodes(target: object) -> tuple[Node, ...]:
    """Name, type, range, default and description of each argument of a function or class."""
    made = parameters_schema(target)
    required = made.get("required", ())
    return tuple(
        Node(name, _text(one, required=name in required), term=type_in_words(one))
        for name, one in made["properties"].items()
    )


def type_in_words(made: Schema) -> str:
    """The type and range that a schema allows.

    Example:
        >>> type_in_words({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
        'integer, at least 1, or null'
    """
    if "anyOf" in made:
        *first, last = map(type_in_words, made["anyOf"])
        return f"{', '.join(first)}, or {last}" if first else last
    if "$ref" in made:
        return str(made["$ref"]).rpartition("/")[2]
    if "const" in made or "enum" in made:
        return " or ".join(json.dumps(value) for value in made.get("enum", [made.get("const")]))
    name = made.get("type", "anything")
    if name == "array" and "items" in made:
        name = f"list of {type_in_words(made['items'])}"
    ranges = [f"{word} {made[key]}" for key, word in _RANGES.items() if key in made]
    return ", ".join([name, *ranges])


def _text(made: Schema, *, required: bool) -> str:
    default = "required" if required else f"default {json.dumps(made.get('default'))}"
    return f"{default}; {made['description']}" if "description" in made else default

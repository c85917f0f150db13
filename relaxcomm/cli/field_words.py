"""A parameter's type, range and default in words."""

from __future__ import annotations

import json
from types import NoneType
from typing import Any, get_args

from relaxcomm.cli.tree import Node
from relaxcomm.config.json_schema import Schema, parameters_schema
from relaxcomm.fields.allowed import in_words
from relaxcomm.fields.validation import hint_at


def parameter_nodes(target: Any) -> tuple[Node, ...]:
    """Name, type, range, default and description of each argument of a function or class."""
    made = parameters_schema(target)
    required = made.get("required", ())
    return tuple(
        Node(name, _text(one, required=name in required), term=_type(hint_at(target, name)))
        for name, one in made["properties"].items()
    )


def _type(hint: Any) -> str:
    return f"{in_words(hint) or 'anything'}{', or null' if NoneType in get_args(hint) else ''}"


def _text(made: Schema, *, required: bool) -> str:
    default = "required" if required else f"default {json.dumps(made.get('default'))}"
    return f"{default}; {made['description']}" if "description" in made else default

"""The page of the configuration: every key of the YAML, from the schema that editors check it with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from relaxcomm.config.json_schema import make_schema, parameters_schema
from relaxcomm.fields.allowed import in_words, one_of
from relaxcomm.tasks import task_loader
from relaxcomm.tasks.task_loader import BUNDLED
from website.reference import ROLES

Schema: TypeAlias = Mapping[str, Any]

_ABOUT = """\
# Configuration

Every key that a YAML file, or a mapping given to `relaxcomm.attach`, may have. Only `algorithm` has to be
there. `--set data.batch_size=64` sets a key from the [command line](command-line.md). `relaxcomm schema` is
the same as a JSON Schema, with which editors complete and check the file.
[What goes into the YAML, and what reads it](../configuration.md) begins with examples.

```yaml
algorithm: {name: local_sgd, steps: 8}
task: digits
workers: 4
data: {batch_size: 32}
```
"""
_RULES = """\
## Rules

`algorithm` is a name, a name with its parameters, or rules. The parameters of each algorithm are on
[its page](../algorithms/README.md). Rules are written so:

```yaml
algorithm:
  name: sparse_deltas
  rules:
    - trigger: {every: {steps: 16}}
      payload: deltas
      compressor: {error_feedback: {top_k: {density: 0.01}}}
      exchange: all_gather
```

A primitive is its name, or its name with its arguments: `{every: {steps: 16}}`; one that wraps another takes
that one as its value. `relaxcomm show NAME` tells the arguments.
"""
_TYPES = {"integer": int, "number": float, "string": str, "boolean": bool, "object": dict}
_BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}


def page() -> str:
    """The page."""
    top = make_schema()
    sections = {name: inner for name, one in top["properties"].items() if (inner := section(one)) is not None}
    parts = [_ABOUT, "## Keys\n", _table(top, "")]
    for name, inner in sections.items():
        below = f"{name}[]" if top["properties"][name].get("type") == "array" else name
        parts += [f"## {name}\n\n{_null(inner['description'])}\n", _table(inner, f"{below}.")]
    parts += [_RULES, _table(top["$defs"]["algorithm"]["anyOf"][-1], "algorithm.")]
    parts += ["Each of `rules` has:\n", _table(top["$defs"]["rule"], "")]
    parts += ["## Tasks\n\nOptions of the bundled tasks, as in `task: {digits: {epochs: 5}}`.\n"]
    for name in BUNDLED:
        made = parameters_schema(task_loader.find_task(name).make)
        made["properties"].pop("seed")
        parts += [f"### {name}\n\n{_null(made['description'])}\n", _table(made, "")]
    return "\n".join(parts)


def section(one: Schema) -> Schema | None:
    """The mapping of known keys that a key's value is, or a list of, or None."""
    for inner in (one, one.get("items", {}), *one.get("anyOf", ())):
        if inner.get("properties"):
            return inner
    return None


def _table(section_: Schema, prefix: str) -> str:
    return "\n".join(("| key | kind | default | |", "|---|---|---|---|", *_rows(section_, prefix), ""))


def _rows(section_: Schema, prefix: str) -> Iterator[str]:
    for name, one in section_["properties"].items():
        default = "required" if name in section_.get("required", ()) else _default(one.get("default"))
        inner = section(one)
        kind = f"[section](#{name})" if inner is not None and not prefix else words(one)
        yield f"| `{prefix}{name}` | {kind} | {default} | {_cell(one['description'])} |"
        if inner is not None and prefix:
            yield from _rows(inner, f"{prefix}{name}.")


def _cell(text: str) -> str:
    return _null(text).replace("\n", " ").replace("|", "\\|")


def _null(text: str) -> str:
    """A description, with YAML's word for None."""
    return re.sub(r"\bNone\b", "null", text[:1].upper() + text[1:])


def _default(value: object) -> str:
    return "" if isinstance(value, dict) else _shown(value)  # a section's keys have their own


def _shown(value: object) -> str:
    """A value as YAML has it."""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def words(one: Schema) -> str:
    """What a value may be, in words.

    Example:
        >>> words({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1}]})
        'a whole number, 1 or more, or null'
    """
    if "anyOf" in one:
        return ", or ".join(sorted(dict.fromkeys(map(words, one["anyOf"])), key=lambda kind: kind == "null"))
    if "$ref" in one:
        return _linked(one["$ref"].rpartition("/")[2])
    if "enum" in one or "const" in one:
        return one_of([_shown(value) for value in one.get("enum", [one.get("const")])])
    if one.get("type") == "array":
        parts = one.get("prefixItems")
        if parts:
            return f"a list of {len(parts)}: {', then '.join(map(words, parts))}"
        return f"a list, each item {words(one['items'])}"
    if one["type"] == "null":
        return "null"
    bounds = {short: one[key] for key, short in _BOUNDS.items() if key in one}
    return in_words(Annotated[_TYPES[one["type"]], Field(**bounds)])


def _linked(name: str) -> str:
    if name in ("algorithm", "rule"):
        return f"[{name}](#rules)"
    heading = next(heading for heading, role in ROLES.items() if role == name)
    return f"[{name}](primitives.md#{heading.lower().replace(' ', '-')})"

"""JSON Schema of the YAML, so that editors complete and check it.

Everything is derived: keys and ranges from the classes and signatures that check a configuration
when it is loaded, names from the registry, descriptions from docstrings. What a schema cannot say
is left to `relaxcomm.config.load`: whether primitives work together, that `2.0` is no integer, and
that infinity is no learning rate.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.config import Config, registry
from relaxcomm.errors import PluginError, worded
from relaxcomm.fields import docstrings
from relaxcomm.fields.frozen import Declared, is_default
from relaxcomm.system.warn import warn
from relaxcomm.tasks.task_loader import BUNDLED

Schema: TypeAlias = dict[str, Any]

_KIND = "x-relaxcomm"
_SPELT: dict[type, str] = {Algorithm: "algorithm", Rule: "rule"}


class _Generator(GenerateJsonSchema):
    """Describes from docstrings, and marks where the grammar has its own spelling for `_resolve`."""

    root: ClassVar[Any] = None
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as its base has it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> Schema:
        if schema["cls"] is not self.root:
            if schema["cls"] in _SPELT:
                return {_KIND: _SPELT[schema["cls"]]}
            if issubclass(schema["cls"], Declared):
                return {_KIND: schema["cls"].role}
        return _described(super().dataclass_schema(schema), schema["cls"])

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> Schema:
        if issubclass(schema["cls"], Declared):
            return {_KIND: schema["cls"].role}
        return super().is_instance_schema(schema)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        if schema["type"] == "arguments":
            return super().handle_invalid_for_json_schema(schema, error_info)
        return {"not": {}}  # a value that Python alone can give, as an object of a class

    def p_arguments_schema(self, arguments: Any, var_args_schema: Any) -> Schema:
        raise TypeError("an argument that is given by its place alone")

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            schema = {**schema, "default": schema["default_factory"]()}  # type: ignore[call-arg]
        return super().default_schema(schema)

    def encode_default(self, dft: Any) -> Any:
        return spell(dft) if _is_spelt(dft) else super().encode_default(dft)


def make_schema() -> Schema:
    """The JSON Schema (draft 2020-12) of a configuration, with all that is installed.

    Example:
        >>> make_schema()["required"]
        ['algorithm']
    """
    top = _resolve(Config.model_json_schema(schema_generator=_Generator))
    definitions = {"algorithm": _algorithms(), "rule": parameters_schema(Rule)}
    top["properties"]["task"] = _task(top["properties"]["task"])
    for role, found in registry.primitives().items():
        definitions[role] = _primitives(found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": "relaxcomm configuration",
        "$defs": dict(sorted(definitions.items())),
    }


def parameters_schema(target: Any) -> Schema:
    """The arguments of a function or a `@frozen` class as the schema of a mapping.

    Args:
        target: what is called with the arguments.

    Raises: PluginError if a type of an argument has none.

    Example:
        >>> from relaxcomm.primitives import every
        >>> parameters_schema(every)["properties"]["steps"]["minimum"]
        1
    """
    generator = type("_RootedGenerator", (_Generator,), {"root": target})
    # A class brings its own settings.
    settings = None if inspect.isclass(target) else ConfigDict(arbitrary_types_allowed=True)
    try:
        adapter = TypeAdapter(target, config=settings)
        made: Schema = _resolve(adapter.json_schema(schema_generator=generator))
    except Exception as error:  # a type of a plug-in's own may raise anything
        place = f"{target.__module__}:{target.__qualname__}"
        why = worded(error).partition("\n")[0]  # pydantic adds a link
        raise PluginError(f"what {place} takes cannot be described: {why}") from error
    return _described(made, target)


def spell(value: object) -> object:
    """A primitive, or several, as YAML would name them, without arguments that have their default.

    Example:
        >>> from relaxcomm.primitives import every
        >>> spell(every(steps=16))
        {'every': {'steps': 16}}
    """
    if isinstance(value, tuple):
        return [spell(item) for item in value]
    if not isinstance(value, Declared):
        return value
    arguments = {
        one.name: spell(getattr(value, one.name))
        for one in dataclasses.fields(value)  # type: ignore[arg-type]  # made by @frozen
        if not is_default(one, getattr(value, one.name))
    }
    return {type(value).__name__: arguments} if arguments else type(value).__name__


def _is_spelt(value: object) -> bool:
    return isinstance(value, Declared) or (isinstance(value, tuple) and any(map(_is_spelt, value)))


def _described(made: Schema, target: object) -> Schema:
    """The schema of `target` with the words of its docstring."""
    text = docstrings.read(target)
    for name, inner in made.get("properties", {}).items():
        if name in text.arguments:
            inner["description"] = text.arguments[name]
    made.pop("title", None)
    return {**made, "description": "\n\n".join((text.summary, *text.body))}


def _resolve(made: Any, local: Mapping[str, Any] | None = None) -> Any:
    """Marks become references to the grammar's definitions, local definitions are written in place."""
    if isinstance(made, list):
        return [_resolve(item, local) for item in made]
    if not isinstance(made, Mapping):
        return made
    local = made.get("$defs", local or {})
    rest = {key: _resolve(item, local) for key, item in made.items() if key not in ("$defs", "$ref", _KIND)}
    if _KIND in made:
        return {"$ref": f"#/$defs/{made[_KIND]}", **rest}
    return {**_resolve(local[made["$ref"].rpartition("/")[2]], local), **rest} if "$ref" in made else rest


def _algorithms() -> Schema:
    """`name`, `{name: …, parameter: …}`, or `{rules: [ … ], …}`."""
    bare, named = [], []
    entries = registry.algorithms()
    for name, arguments in _each({name: entry.build for name, entry in entries.items()}):
        if not arguments.get("required"):
            bare.append({"const": name, "description": entries[name].summary})
        named.append(
            {
                **arguments,
                "properties": {"name": {"const": name}, **arguments["properties"]},
                "required": ["name", *arguments.get("required", ())],
            }
        )
    rules = parameters_schema(Algorithm)
    rules["properties"]["rules"]["minItems"] = 1
    del rules["properties"]["planner"]  # only what a package defines has one
    return {"anyOf": [*bare, *named, rules]}


def _each(found: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """The schema of each one's arguments; a plug-in's that has none is left out."""
    for name, target in sorted(found.items()):
        try:
            yield name, parameters_schema(target)
        except PluginError as error:
            warn(f"{name!r} is left out of the schema: {error}", UserWarning)


def _task(made: Schema) -> Schema:
    """The bundled tasks' names first, for completion; a mapping has one name, of its options."""
    options = {"additionalProperties": {"type": ["object", "null"]}, "minProperties": 1, "maxProperties": 1}
    forms = [one | options if one["type"] == "object" else one for one in made["anyOf"]]
    return {**made, "anyOf": [{"enum": sorted(BUNDLED)}, *forms]}


def _primitives(found: Mapping[str, type[Declared]]) -> Schema:
    """`name`, `{name: {argument: …}}`, or, for one that wraps others, `{name: what it wraps}`."""
    bare, called = [], []
    for name, arguments in _each(found):
        required = arguments.get("required", [])
        wrapped = [key for key, inner in arguments["properties"].items() if _holds_primitive(inner)][:1]
        if not required:
            bare.append({"const": name, "description": arguments["description"]})
        forms = [arguments]
        if wrapped and set(required) <= set(wrapped):
            forms.append(arguments["properties"][wrapped[0]])
        called.append(
            {
                "type": "object",
                "properties": {name: forms[0] if len(forms) == 1 else {"anyOf": forms}},
                "required": [name],
                "additionalProperties": False,
            }
        )
    return {"anyOf": [*bare, *called]}


def _holds_primitive(made: Any) -> bool:
    if isinstance(made, Mapping):
        return "$ref" in made or any(map(_holds_primitive, made.values()))
    return isinstance(made, list) and any(map(_holds_primitive, made))

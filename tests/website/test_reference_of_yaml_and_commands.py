"""The reference has every key of the YAML and every command with its options."""

import re
from typing import get_args

import jsonschema
import pytest
import typer

from relaxcomm.cli.app import app, imported
from relaxcomm.composition.rule import Rule
from relaxcomm.config import Config
from relaxcomm.config.json_schema import make_schema
from relaxcomm.fields.frozen import Section
from relaxcomm.tasks.task_loader import BUNDLED, find_task
from website import command_line, configuration

KEYS = configuration.page()
COMMANDS = typer.main.get_command(app).commands


def sections(section: type[Section], prefix: str = ""):
    """Every key of a section and of those in it, with its field."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, Section):
                many = "[]" if field.annotation is not inner and get_args(field.annotation)[-1] is ... else ""
                yield from sections(inner, f"{prefix}{name}{many}.")


FIELDS = dict(sections(Config))


def row(key: str) -> list[str]:
    (found,) = re.findall(rf"^\| `{re.escape(key)}` \|.*\|$", KEYS, flags=re.MULTILINE)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", found)[1:-1]]


@pytest.mark.parametrize("key", FIELDS)
def test_every_key_is_there_with_kind_default_and_words(key):
    _, kind, default, words = row(key)
    assert kind
    assert len(words) > 5
    assert (default == "required") == FIELDS[key].is_required()


def test_sections_are_found():
    assert {"phases[].residuals", "membership.secret.env", "metrics.port", "data.micro_batch_size"} < set(
        FIELDS
    )


@pytest.mark.parametrize(
    ("key", "cells"),
    [
        ("workers", ["a whole number, 1 to 4,096", "`2`"]),
        ("topology", ["[topology](primitives.md#topologies)", "`complete`"]),
        ("drift_guard.policy", ["`error`, `warn` or `average`", "`error`"]),
        ("membership", ["[section](#membership)", ""]),
        ("metrics.port", ["a whole number, 0 to 65,535, or null", "`9400`"]),
    ],
)
def test_kind_and_default(key, cells):
    assert row(key)[1:3] == cells


def test_every_key_of_a_rule_and_every_option_of_a_task_is_there():
    for name in (*Rule.__dataclass_fields__, "algorithm.rules", "algorithm.controllers"):
        assert f"\n| `{name}` | " in KEYS
    for name in BUNDLED:
        _, _, text = KEYS.partition(f"\n### {name}\n")
        for option in set(find_task(name).make.__kwdefaults__):
            assert f"\n| `{option}` | " in text.partition("\n### ")[0]


def test_the_schema_refers_to_nothing_that_is_missing():
    schema = make_schema()
    rules = [{"payload": "gradients", "exchange": "all_reduce"}]
    jsonschema.validate({"algorithm": {"rules": rules, "name": "x"}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"algorithm": {"rules": rules, "planner": None}}, schema)
    named = set(re.findall(r"#/\$defs/(\w+)", str(schema)))
    assert named <= set(schema["$defs"])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_with_its_options(name):
    page = command_line.page()
    assert f"| [`{name}`](#relaxcomm-{name}) | " in page
    _, _, text = page.partition(f"\n## `relaxcomm {name}`\n")
    text = text.partition("\n## ")[0]
    for parameter in imported(name).params:
        shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        assert f"* `{shown}" in text, shown


def test_exit_codes_are_told():
    assert "\nExit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted.\n" in command_line.page()

"""The JSON Schema says yes to what `relaxcomm.config.load` takes, and no to what it refuses."""

import copy
import json
import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st
from pydantic import Field
from typer.testing import CliRunner

import relaxcomm
from relaxcomm import Algorithm, CompositionError, ConfigError, Rule, config
from relaxcomm.cli.app import app
from relaxcomm.config import registry
from relaxcomm.config.json_schema import make_schema, parameters_schema, spell
from relaxcomm.plugin import Compressor, frozen
from relaxcomm.primitives import all_reduce, gradients, identity
from relaxcomm.roles import CompressorFacts

# JSON Schema calls 1.0 an integer; YAML and the loader do not.
INTEGERS_ONLY = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda checker, value: type(value) is int
    ),
)
RULE = {"payload": "deltas", "exchange": "all_reduce", "trigger": {"every": {"steps": 3}}}


class _Test(Compressor):
    def encode_decode(self, cx, tensor, state, *, keep_sent):
        raise NotImplementedError

    def message_bytes(self, numel, element_bytes):
        return 0


@frozen
class wraps_one(_Test):
    """Wraps another.

    Args:
        compressor: what is wrapped.
        decay: of the residual.
    """

    compressor: Compressor
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0

    facts: ClassVar[CompressorFacts] = identity.facts


@frozen
class wraps_several(_Test):
    """Wraps several.

    Args:
        compressors: what is wrapped.
    """

    compressors: Annotated[tuple[Compressor, ...], Field(min_length=1)] = (identity(), wraps_one(identity()))

    facts: ClassVar[CompressorFacts] = identity.facts


@frozen
class wraps_and_needs(_Test):
    """Wraps one that may be missing, and needs a number besides, so that it has no short form.

    Args:
        compressor: what is wrapped.
        number: of something.
    """

    compressor: Compressor | None
    number: int

    facts: ClassVar[CompressorFacts] = identity.facts


WRAPPED = wraps_one(identity())
# Each argument alone is allowed, which is all that a schema says.
MISFITS = re.compile("adaptive_top_k: least=.* is above most|quantize: one bit has no levels around 0")

pytestmark = pytest.mark.filterwarnings("ignore::relaxcomm.CompositionWarning")


def encoded(compressor: Compressor | None = None, first: Compressor = WRAPPED) -> Algorithm:
    """Gradients, encoded.

    Args:
        compressor: how.
        first: nothing.
    """
    rule = Rule(payload=gradients(), exchange=all_reduce(), compressor=compressor or first)
    return Algorithm((rule,), name="encoded")


@pytest.fixture(scope="module", autouse=True)
def more_primitives():
    """Primitives and an algorithm of every form of the grammar, beside those that are installed."""
    known = registry.primitives()
    more = {cls.__name__: cls for cls in (wraps_one, wraps_several, wraps_and_needs)}
    with pytest.MonkeyPatch.context() as patch:
        found = {**known, "compressor": {**known["compressor"], **more}}
        patch.setattr(registry, "primitives", lambda: found)
        algorithms = {**registry.algorithms(), "encoded": registry.Entry("encoded", encoded, "tests")}
        patch.setattr(registry, "algorithms", lambda: algorithms)
        yield


@pytest.fixture(scope="module")
def accepts(more_primitives):
    """Whether a configuration is allowed by the schema."""
    made = make_schema()
    jsonschema.Draft202012Validator.check_schema(made)
    validator = INTEGERS_ONLY(made)
    return lambda values: validator.is_valid(values)


def loads(values: Any) -> bool | None:
    """Whether the words are right; None where primitives or their arguments do not fit each other."""
    try:
        config.load(copy.deepcopy(values))
    except CompositionError:
        return None
    except ConfigError as error:
        return None if MISFITS.search(str(error)) else False
    return True


def smallest(made: dict[str, Any]) -> Any:
    """A value that is allowed for a parameter, from its schema."""
    if "default" in made:
        return made["default"]
    if "enum" in made or "const" in made:
        return made.get("const", made.get("enum", [None])[0])
    if "anyOf" in made:
        return smallest(made["anyOf"][0])
    if "$ref" in made:  # the first of that role that needs no argument
        found = registry.primitives()[made["$ref"].rpartition("/")[2]]
        return next(name for name, cls in found.items() if not parameters_schema(cls).get("required"))
    if made["type"] == "array":
        return [smallest(made["items"])] * made.get("minItems", 1)
    low = made.get("minimum", made.get("exclusiveMinimum", 0))
    return {"integer": low, "number": (low + made.get("maximum", low + 1)) / 2, "string": "a"}[made["type"]]


def arguments(target: Any, *, everything: bool) -> dict[str, Any]:
    made = parameters_schema(target)
    names = made["properties"] if everything else made.get("required", ())
    return {name: smallest(made["properties"][name]) for name in names}


def good() -> dict[str, Any]:
    """Every algorithm by name and with parameters, every primitive, every form of the grammar."""
    found: dict[str, Any] = {
        "demo": yaml.safe_load((Path(relaxcomm.__file__).parent / "tasks" / "demo.yaml").read_text()),
        "all keys": {
            **{"algorithm": "bsp", "topology": "complete", "task": {"digits": {"epochs": 2}}, "workers": 3},
            **{"backend": "gloo", "seed": 0, "bucket_bytes": 1, "timeout_seconds": 5, "output": None},
            **{"data": {"batch_size": 4, "partition": "iid"}, "debug": True},
        },
        "own task": {"algorithm": "bsp", "task": "mine.job:make"},
        "rule, all keys": rule(delay=1, outer="average", select=["a", "b.*"], active=[3, None]),
        "one pattern": rule(select="a"),
        "one slot": rule(payload={"optimizer_state": {"slots": "exp_avg"}}),
        "named": {"algorithm": {"name": "mine", "rules": [RULE, {**RULE, "active": [0, 5]}]}},
        "wrapping, short": rule(compressor={"wraps_one": {"cast": {"dtype": "float16"}}}),
        "wrapping, name": rule(compressor={"wraps_one": "identity"}),
        "wrapping, long": rule(compressor={"wraps_one": {"compressor": "identity", "decay": 0.5}}),
        "wrapping twice": rule(compressor={"wraps_one": {"wraps_one": "identity"}}),
        "wrapping several": rule(compressor={"wraps_several": ["identity", {"wraps_one": "identity"}]}),
        "wrapping several, long": rule(compressor={"wraps_several": {"compressors": ["identity"]}}),
        "wrapping none": rule(compressor={"wraps_and_needs": {"compressor": None, "number": 1}}),
        "algorithm of a primitive": {
            "algorithm": {"name": "encoded", "compressor": {"wraps_one": "identity"}}
        },
        "algorithm of none": {"algorithm": {"name": "encoded", "compressor": None}},
        "algorithm of a primitive by default": {"algorithm": "encoded"},
        "scheduled": {"algorithm": {"name": "topk_sgd", "density": SCHEDULE}},
        "scheduled, in a rule": rule(exchange="all_gather", compressor=feedback({"density": SCHEDULE})),
        "scheduled, short": rule(exchange="all_gather", compressor=feedback(SCHEDULE)),
        "no arguments, as a mapping": rule(trigger={"every_step": {}}),
    }
    for name, entry in registry.algorithms().items():
        for everything in (False, True):
            found[f"{name} {everything}"] = {
                "algorithm": {"name": name, **arguments(entry.build, everything=everything)}
            }
        if not parameters_schema(entry.build).get("required"):
            found[name] = {"algorithm": name}
    for name, cls in registry.primitives()["controller"].items():
        found[f"controller {name}"] = {
            "algorithm": {"rules": [RULE], "controllers": [{name: arguments(cls, everything=True)}]}
        }
    for role in ("trigger", "payload", "compressor", "exchange", "outer"):
        for name, cls in registry.primitives()[role].items():
            for everything in (False, True):
                other = {"payload": "parameters"} if name in ("gossip", "group_all_reduce") else {}
                changes = {role: {name: arguments(cls, everything=everything)}, **other}
                found[f"{role} {name} {everything}"] = rule(**changes)
    return found


def rule(**changes: Any) -> dict[str, Any]:
    return {"algorithm": {"rules": [{**RULE, **changes}]}}


def feedback(arguments: Any) -> Any:
    return {"error_feedback": {"top_k": arguments}}


SCHEDULE = {"piecewise": {"values": [0.5, 0.1], "steps": [3]}}
GOOD = good()
BAD = {
    "schedule without its name": rule(
        exchange="all_gather", compressor=feedback({"density": SCHEDULE["piecewise"]})
    ),
    "schedule without steps": {"algorithm": {"name": "topk_sgd", "density": {"piecewise": {"values": [1]}}}},
    "nothing": {},
    "unknown key": {"algorithm": "bsp", "worker": 2},
    "unknown key in a section": {"algorithm": "bsp", "data": {"batchsize": 2}},
    "wrong type": {"algorithm": "bsp", "workers": "2"},
    "boolean": {"algorithm": "bsp", "workers": True},
    "out of range": {"algorithm": "bsp", "workers": 0},
    "wrong choice": {"algorithm": "bsp", "backend": "mpi"},
    "unknown algorithm": {"algorithm": "bps"},
    "unknown parameter": {"algorithm": {"name": "local_sgd", "step": 2}},
    "parameter out of range": {"algorithm": {"name": "local_sgd", "steps": 0}},
    "parameter of the wrong type": {"algorithm": {"name": "local_sgd", "steps": 1.5}},
    "parameter missing": {"algorithm": "post_local_sgd"},
    "parameter of another": {"algorithm": {"name": "bsp", "steps": 2}},
    "controllers not a list": {"algorithm": {"rules": [RULE], "controllers": "norm_test"}},
    "unknown controller": {"algorithm": {"rules": [RULE], "controllers": ["every_step"]}},
    "algorithm of another role": {"algorithm": {"name": "encoded", "compressor": "every_step"}},
    "algorithm of no primitive": {"algorithm": {"name": "encoded", "compressor": 3}},
    "rules not a list": {"algorithm": {"rules": RULE}},
    "rule without exchange": {"algorithm": {"rules": [{"payload": "gradients"}]}},
    "rule of an unknown key": rule(late=1),
    "key beside rules": {"algorithm": {"rules": [RULE], "steps": 2}},
    "primitive of another role": rule(exchange="identity"),
    "unknown primitive": rule(trigger={"evry": {"steps": 2}}),
    "primitive's argument missing": rule(trigger="every"),
    "primitive's unknown argument": rule(trigger={"every": {"step": 2}}),
    "two primitives": rule(trigger={"every": {"steps": 2}, "every_step": {}}),
    "argument without its name": rule(trigger={"every": 2}),
    "nothing as arguments": rule(trigger={"every_step": None}),
    "negative delay": rule(delay=-1),
    "active of one number": rule(active=[0]),
    "list where one is wrapped": rule(compressor={"wraps_one": ["identity"]}),
    "one where several are wrapped": rule(compressor={"wraps_several": "identity"}),
    "no short form": rule(compressor={"wraps_and_needs": "identity"}),
    "wrapped twice over": rule(compressor={"wraps_one": {"decay": 0.5}}),
    "too few": rule(compressor={"wraps_several": []}),
    "no slots": rule(payload={"optimizer_state": {"slots": []}}),
}


@pytest.mark.parametrize("name", GOOD)
def test_good(name, accepts):
    assert loads(GOOD[name]) is not False
    assert accepts(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_bad(name, accepts):
    assert loads(BAD[name]) is False
    assert not accepts(BAD[name])


JUNK = st.sampled_from(
    [None, True, 0, 1, -1, 7, 0.5, 1.5, "", "x", "bsp", "identity", "every_step", [], {}, ["identity"]]
)


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a configuration."""
    items = (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    )
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


# How many values a schedule has depends on its steps, and their range on what follows it: no schema says so.
CHANGEABLE = [name for name in GOOD if not name.startswith("scheduled")]


@st.composite
def changed(draw) -> Any:
    """A good configuration with one or two of its places removed, renamed, replaced or added to."""
    values = copy.deepcopy(GOOD[draw(st.sampled_from(CHANGEABLE))])
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(places(values)[1:] or [("algorithm",)]))
        *outer, key = path
        place = values
        for step in outer:
            place = place[step]
        how = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
        if how == "replace":
            place[key] = copy.deepcopy(draw(JUNK))
        elif how == "remove":
            place.pop(key, None) if isinstance(place, dict) else place.pop(key)
        elif isinstance(place, dict):
            name = draw(st.sampled_from(["name", "rules", "steps", "compressor", "identity", "unknown"]))
            place[name] = place.pop(key, None) if how == "rename" else copy.deepcopy(draw(JUNK))
    return values


@settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=changed())
def test_the_schema_and_the_loader_agree(accepts, values):
    assert loads(values) in (None, accepts(values)), values


@pytest.mark.parametrize(
    ("task", "allowed"),
    [
        ("own.module:make", True),
        ({"digits": None}, True),
        ({"digits": {"epochs": 1}}, True),
        ({}, False),
        ({"digits": 3}, False),
        ({"digits": {}, "charlm": {}}, False),
        (["digits"], False),
    ],
    ids=str,
)
def test_a_task_has_one_name(accepts, task, allowed):
    values = {"algorithm": "bsp", "task": task}
    assert (loads(values), accepts(values)) == (allowed, allowed)


def test_what_the_schema_tells_an_editor():
    made = make_schema()
    (steps,) = [
        one["properties"]["steps"]
        for one in made["$defs"]["algorithm"]["anyOf"]
        if one.get("properties", {}).get("name") == {"const": "local_sgd"}
    ]
    assert steps == {
        **{"type": "integer", "minimum": 1, "default": 16},
        "description": "local steps from one average to the next, in optimizer steps.",
    }
    assert made["properties"]["bucket_bytes"]["description"] == "capacity of a bucket, in bytes."
    assert made["$defs"]["rule"]["properties"]["trigger"]["default"] == "every_step"
    assert "samples a worker and step" in json.dumps(made["properties"]["data"])


def test_a_default_that_is_made_is_told():
    @frozen
    class made(_Test):
        """Has lists."""

        at: list[int] = field(default_factory=lambda: [2, 5])
        of: dict[str, int] = field(default_factory=dict)

        facts: ClassVar[CompressorFacts] = identity.facts

    properties = parameters_schema(made)["properties"]
    assert {name: one["default"] for name, one in properties.items()} == {"at": [2, 5], "of": {}}
    assert spell(made(at=[2, 5], of={"a": 1})) == {"made": {"of": {"a": 1}}}


def test_a_default_that_is_a_primitive_is_spelt_as_in_yaml():
    default = parameters_schema(wraps_several)["properties"]["compressors"]["default"]
    assert default == ["identity", {"wraps_one": {"compressor": "identity"}}]
    assert spell(wraps_one(identity(), decay=0.5)) == {"wraps_one": {"compressor": "identity", "decay": 0.5}}


def test_the_command_prints_it():
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == make_schema()

"""A name that is to go works as before, says so once, and is marked wherever it is listed."""

import os
import subprocess
import sys
import textwrap

import jsonschema
import pytest
from typer.testing import CliRunner

import relaxcomm
from relaxcomm import ConfigError, DeprecatedWarning, config
from relaxcomm.cli import exit_codes
from relaxcomm.cli.app import app
from relaxcomm.config import registry
from relaxcomm.config.json_schema import make_schema

PLUGIN = """
from typing import Annotated, ClassVar
from relaxcomm import (
    Algorithm, Compressor, Rule, Share, Steps, Trigger, all_reduce, deprecated, every, frozen, gradients,
    identity, parameters, renamed,
)

RELAXCOMM_PROTOCOL = 1

@deprecated(since="0.3", gone="0.4", instead="local_sgd with steps=1")
def old_way() -> Algorithm:
    '''Averages in every step.'''
    return Algorithm((Rule(payload=parameters(), exchange=all_reduce()),), name="old_way")

def new_way(
    steps: Annotated[Steps, renamed(before="period", since="0.3", gone="0.4")],
    compressor: Annotated[Compressor, renamed(before="coder", since="0.3", gone="0.4")] = identity(),
    warmup: Annotated[int | None, deprecated(since="0.2", gone="0.4", instead="the key active")] = None,
) -> Algorithm:
    '''Averages now and then.

    Args:
        steps: from one average to the next.
        compressor: of the parameters.
        warmup: steps at first.

    Example:
        >>> new_way(steps=3).name
        'new_way'
    '''
    rule = Rule(trigger=every(steps=steps), payload=parameters(), compressor=compressor,
        exchange=all_reduce(), active=(warmup or 0, None))
    return Algorithm((rule,), name="new_way")

@frozen
class seldom(every):
    '''Seldom.

    Args:
        steps: from one to the next.
        note: is not read.
    '''
    steps: Annotated[Steps, renamed(before="period", since="0.3", gone="0.4")]
    note: Annotated[int, deprecated(since="0.2", gone="0.4", instead="a comment")] = 0

@deprecated(since="0.3", gone="0.4", instead="seldom")
@frozen
class rarely(seldom):
    '''Rarely.

    Args:
        steps: from one to the next.
        note: is not read.
    '''
"""
NAMES = {"algorithms": ("old_way", "new_way"), "primitives": ("seldom", "rarely")}
PERIOD = "use steps"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the plug-in as a package manager would have installed it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "aged.py").write_text(textwrap.dedent(PLUGIN))
    facts = folder / "aged-0.3.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: aged\nVersion: 0.3\n")
    groups = (
        f"[relaxcomm.{group}]\n" + "".join(f"{name} = aged:{name}\n" for name in names)
        for group, names in NAMES.items()
    )
    (facts / "entry_points.txt").write_text("\n".join(groups))
    return folder


@pytest.fixture(autouse=True)
def installed(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    registry.algorithms.cache_clear()
    registry.primitives.cache_clear()
    yield
    registry.algorithms.cache_clear()
    registry.primitives.cache_clear()


def rule(trigger):
    return {"rules": [{"trigger": trigger, "payload": "parameters", "exchange": "all_reduce"}]}


USES = {
    "an algorithm": (
        "old_way",
        "old_way is deprecated since version 0.3 of aged, and gone in 0.4; use local_sgd",
    ),
    "its parameter": (
        {"name": "new_way", "steps": 4, "warmup": 8},
        "new_way's parameter 'warmup' is deprecated",
    ),
    "its old parameter": ({"name": "new_way", "period": 4}, PERIOD),
    "a primitive": (rule({"rarely": {"steps": 4}}), "rarely is deprecated"),
    "its parameter too": (rule({"seldom": {"steps": 4, "note": 1}}), "seldom's parameter 'note'"),
    "its old name": (rule({"seldom": {"period": 4}}), PERIOD),
    "an old name that holds primitives": (
        {"name": "new_way", "steps": 4, "coder": {"cast": {"dtype": "float16"}}},
        "use compressor",
    ),
}


@pytest.mark.parametrize("use", USES)
def test_one_warning(use):
    value, words = USES[use]
    with pytest.warns(DeprecatedWarning) as told:
        config.load({"algorithm": value})
    (warning,) = told
    assert words in str(warning.message)
    assert issubclass(DeprecatedWarning, FutureWarning)  # shown without asking


@pytest.mark.filterwarnings("ignore::relaxcomm.DeprecatedWarning")
def test_it_works_as_before():
    def built(value):
        return config.load({"algorithm": value}).algorithm.rules[0]

    assert built({"name": "new_way", "period": 5}) == built({"name": "new_way", "steps": 5})
    assert built(rule({"seldom": {"period": 5}})) == built(rule({"seldom": {"steps": 5}}))
    assert built({"name": "new_way", "steps": 4, "coder": {"cast": {"dtype": "float16"}}}).compressor == (
        relaxcomm.cast(dtype="float16")
    )
    assert built({"name": "new_way", "steps": 4, "warmup": 8}).active == (8, None)
    cls = registry.primitive("trigger", "seldom")
    assert cls(period=5) == cls(5)
    with pytest.raises(ConfigError, match="seldom: steps = 0 is not allowed"):
        cls(period=0)


def test_what_stays_is_silent():
    config.load({"algorithm": {"name": "new_way", "steps": 4}})
    config.load({"algorithm": rule({"seldom": {"steps": 4}})})


def test_python_says_where():
    cls = registry.primitive("trigger", "seldom")
    with pytest.warns(DeprecatedWarning, match="parameter 'note'") as told:
        cls(4, 1)  # by position
    assert told[0].filename == __file__


def test_both_names_are_refused():
    for value in ({"name": "new_way", "steps": 4, "period": 4}, rule({"seldom": {"period": 4, "steps": 4}})):
        with pytest.raises(ConfigError, match="got 'steps' also by an old name"):
            config.load({"algorithm": value})


def test_the_schema_marks_them():
    made = make_schema()
    validator = jsonschema.Draft202012Validator(made)
    old_way = [
        one for one in made["$defs"]["algorithm"]["anyOf"] if "Averages in every" in one["description"]
    ]
    assert [one["deprecated"] for one in old_way] == [True, True]  # the bare name, and with arguments
    triggers = {
        key: one
        for made in made["$defs"]["trigger"]["anyOf"]
        for key, one in made.get("properties", {}).items()
    }
    assert triggers["rarely"]["deprecated"]
    assert "deprecated" not in triggers["seldom"]
    marked = {name for name, one in triggers["seldom"]["properties"].items() if one.get("deprecated")}
    assert marked == {"period", "note"}
    for value, _ in USES.values():
        assert validator.is_valid({"algorithm": value}), value
    for value in (
        {"name": "new_way"},
        {"name": "new_way", "steps": 4, "period": 4},
        {"name": "new_way", "period": 0},
        rule({"seldom": {"period": 4, "steps": 4}}),
        rule({"seldom": {}}),
        rule("seldom"),
    ):
        assert not validator.is_valid({"algorithm": value}), value


def shown(*arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.filterwarnings("ignore::relaxcomm.DeprecatedWarning")
def test_listings_mark_them():
    listed = shown("algorithms")
    assert "old_way is deprecated since version 0.3 of aged" in listed
    assert "warmup=None (deprecated)" in listed
    assert "deprecated old_way is deprecated" in shown("show", "old_way")
    assert "deprecated rarely is deprecated" in shown("show", "rarely", "--set", "steps=3")
    seldom = shown("show", "seldom", "--set", "period=3")
    assert "seldom's parameter 'period' is deprecated" in seldom
    assert "seldom's parameter 'note' is deprecated" in seldom
    assert "new_way's parameter 'period'" in shown("show", "new_way", "--set", "period=3")


def test_they_keep_the_contract():
    for name in ("old_way", "new_way"):
        assert not [str(one) for one in relaxcomm.check(name) if one.fault]


def test_a_command_says_the_same_once(capsys, monkeypatch):
    monkeypatch.setattr(exit_codes, "_said", set())
    for text in ("one", "two", "one"):
        exit_codes.warn(text, DeprecatedWarning, "anywhere.py", 1)
    assert capsys.readouterr().err == "relaxcomm: warning: one\nrelaxcomm: warning: two\n"


@pytest.mark.slow
@pytest.mark.ranks
def test_workers_do_not_repeat_it(site, tmp_path):
    (tmp_path / "relaxcomm.yaml").write_text("algorithm: old_way\ntask: {digits: {epochs: 1}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "relaxcomm", "train", "relaxcomm.yaml", "--set", "workers=2"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "old_way" in done.stdout
    assert done.stderr.count("deprecated") == 1
    assert done.stderr.startswith("relaxcomm: warning: old_way is deprecated")

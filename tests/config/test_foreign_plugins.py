"""Entry points of other packages, which may be anything: what is broken is left out, with one warning."""

import functools
import sys
import types
import warnings
from asyncio import CancelledError
from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from relaxcomm import PluginError, RelaxcommError, check
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import discovery, load, registry
from relaxcomm.config.json_schema import make_schema, parameters_schema
from relaxcomm.primitives import every_step


@pytest.fixture
def install(monkeypatch):
    found = discovery.entry_points

    def put(name="mine", value="foreign:thing", group=discovery.ALGORITHMS, protocol=2, **content):
        module = types.ModuleType("foreign")
        module.__dict__.update(RELAXCOMM_PROTOCOL=protocol, **content)
        monkeypatch.setitem(sys.modules, "foreign", module)
        point = EntryPoint(name, value, group)
        added = {group: [point]}
        monkeypatch.setattr(
            discovery, "entry_points", lambda group: [*found(group=group), *added.get(group, [])]
        )
        registry.algorithms.cache_clear()
        registry.primitives.cache_clear()

    yield put
    registry.algorithms.cache_clear()
    registry.primitives.cache_clear()


def build() -> Algorithm:
    return load({"algorithm": "local_sgd"}).algorithm


def discover_all():
    registry.algorithms()
    registry.primitives()


def fails():
    raise KeyError("its own mistake")


def is_cancelled():
    raise CancelledError("its own mistake")


class Undecorated(every_step):
    pass


def test_nobody_takes_a_bundled_name(install):
    install(name="bsp", thing=build)
    with pytest.warns(
        UserWarning, match="'bsp' of foreign:thing is left out: the name is already taken by relax"
    ):
        assert load({"algorithm": "bsp"}).algorithm.name == "bsp"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"value": ""}, "'' is no place; write package.module:name"),
        ({"value": "", "group": discovery.PRIMITIVES}, "'' is no place"),
        ({"name": "a\nb"}, "a name has letters, digits"),
        ({"protocol": "1"}, "RELAXCOMM_PROTOCOL of foreign is '1'; it is a whole number"),
        ({"protocol": float("nan")}, "is nan; it is a whole number"),
        ({"protocol": 3}, "protocol 3, and this relaxcomm has 2; install a newer relaxcomm"),
        ({"protocol": 1}, "a newer foreign, or, if it is yours, state most_entries in Compressor"),
        ({"thing": 3}, "3 is not a function that returns an Algorithm"),
        ({"thing": dict}, "is not a function that returns an Algorithm"),
        ({"thing": functools.partial(build)}, "is not a function that returns an Algorithm; write one, with"),
        ({"thing": build, "group": discovery.PRIMITIVES}, "is not a complete primitive"),
        ({"value": "foreign", "group": discovery.PRIMITIVES}, "the module has none; import them into it"),
        ({"thing": Undecorated, "group": discovery.PRIMITIVES}, "write @frozen above it"),
    ],
)
def test_what_is_left_out(install, entry, says):
    install(**{"thing": build, **entry})
    with pytest.warns(UserWarning, match="plug-in .* is left out: ") as caught:
        discover_all()
    assert len(caught) == 1
    assert says in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load({"algorithm": "bsp"}).algorithm.name == "bsp"


class Own:
    """What YAML cannot say."""


def own_types(one: Own | None = None, call: Callable[[int], int] = abs, *, steps: int = 3) -> Algorithm: ...


def unreadable(steps: "Nowhere" = 3) -> Algorithm: ...  # noqa: F821


def by_place(steps: int, /) -> Algorithm: ...


def in_a_row(*args: int, **more: int) -> Algorithm: ...


def test_types_that_cannot_be_read_are_their_plugins_own_business(install):
    install(thing=unreadable)
    with pytest.warns(UserWarning, match="'mine' of .* types of its parameters cannot be read: NameError"):
        assert "required" in make_schema()
    for asked in ("mine", {"name": "mine", "steps": 3}):
        with pytest.raises(PluginError, match="'mine' of foreign:thing is left out: the types of its par"):
            load({"algorithm": asked})


def test_what_yaml_cannot_say_is_no_value_of_the_schema(install):
    install(thing=own_types)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "required" in make_schema()
    described = parameters_schema(own_types)["properties"]
    assert described["one"] == {"anyOf": [{"not": {}}, {"type": "null"}], "default": None}
    assert described["call"] == {"not": {}}
    assert described["steps"] == {"default": 3, "type": "integer"}


def lists(one: list[int] | None = None, other: tuple[int, ...] = ()) -> Algorithm:
    assert (one, other) == ([1, 2], (3, 4))
    return build()


def test_a_list_is_a_list_where_one_is_asked_for(install):
    install(thing=lists)
    assert load({"algorithm": {"name": "mine", "one": [1, 2], "other": [3, 4]}}).algorithm.name == "local_sgd"


@pytest.mark.parametrize("thing", [by_place, in_a_row])
def test_what_has_no_schema_is_left_out_of_it(thing, install):
    install(thing=thing)
    with pytest.warns(UserWarning, match=f"^'mine' is left out of the schema: .*:{thing.__name__} takes"):
        assert "'mine'" not in str(make_schema())


@pytest.mark.parametrize("error", ["SystemExit", "CancelledError"])
def test_a_module_that_raises_what_is_no_exception_is_left_out(error, install, tmp_path, monkeypatch):
    """Such as the end of the process, pytest's Skipped, or an operation of asyncio that was cancelled."""
    name = f"raises_{error}"
    (tmp_path / f"{name}.py").write_text(f"from asyncio import CancelledError\nraise {error}(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for group in (discovery.ALGORITHMS, discovery.PRIMITIVES):
        install(value=name, group=group)
        with pytest.warns(UserWarning, match=f"'mine' of {name} is left out: .*{error}: 3"):
            discover_all()


def test_an_interrupt_of_an_import_is_one(install, tmp_path, monkeypatch):
    (tmp_path / "interrupted_alone.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    install(value="interrupted_alone", group=discovery.PRIMITIVES)
    with pytest.raises(KeyboardInterrupt) as caught:
        discover_all()
    assert caught.value.__notes__ == ["while the plug-in interrupted_alone was being imported"]


@pytest.mark.parametrize(("build", "error"), [(fails, "KeyError: '"), (is_cancelled, "CancelledError: ")])
def test_an_algorithm_that_cannot_be_built_says_whose_it_is(build, error, install):
    install(thing=build)
    with pytest.raises(
        PluginError, match=rf"algorithm mine \(foreign:thing\) cannot be built: {error}its own"
    ):
        load({"algorithm": "mine"})


def test_what_an_algorithm_returns_is_one(install):
    install(thing=lambda: "bsp")
    with pytest.raises(
        PluginError, match=r"algorithm mine \(foreign:thing\) returned 'bsp', not an Algorithm"
    ):
        load({"algorithm": "mine"})


def test_a_plug_in_says_for_which_protocol_it_was_written(install):
    install(thing=build, protocol=None)
    with pytest.warns(UserWarning, match="foreign does not say for which plug-in protocol it was written"):
        discover_all()


GOOD = """
from typing import ClassVar
from relaxcomm.plugin import Steps, Trigger, TriggerFacts, frozen

@frozen
class {name}(Trigger):
    '''Fires in every step.'''
    facts: ClassVar[TriggerFacts] = TriggerFacts(
        known="start", event=None, period_steps=1, needs=frozenset(), looks_at=frozenset(), slots={{}}
    )
    def fires(self, cx):
        return True
"""
BREAKS = {
    "no facts": ("facts: ClassVar[TriggerFacts]", "fact: ClassVar[TriggerFacts]", "bad declares no facts"),
    "no method": ("def fires", "def fire", "it lacks fires"),
    "other arguments": (
        "(self, cx)",
        "(self, cx, state)",
        "bad.fires(self, cx, state) takes other arguments than it is given; write def fires(self, cx)",
    ),
    "no role": ("(Trigger)", "", "derive it from a role"),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package with the given modules and entry points."""

    def put(name, points, **modules):
        for module, source in modules.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{module}.py").write_text(source)
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        lines = [f"[{group}]\n{one} = {place}" for group, one, place in points]
        (tmp_path / f"{name}-1.0.dist-info/entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(tmp_path)
        registry.algorithms.cache_clear()
        registry.primitives.cache_clear()

    yield put
    registry.algorithms.cache_clear()
    registry.primitives.cache_clear()


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("how", BREAKS)
def test_what_is_broken_leaves_the_rest_of_its_package(how, apart, package):
    old, new, says = BREAKS[how]
    name = f"partly_{how}_{apart}".replace(" ", "_")
    modules = {"bad": GOOD.format(name="bad").replace(old, new), "good": GOOD.format(name="good")}
    parts = (f"from {name}.{one} import {one}\n" if apart else source for one, source in modules.items())
    top = "".join(parts)
    uses = (
        f"from {name} import bad\ndef uses():\n    return Rule(trigger=bad())\nfrom relaxcomm import Rule\n"
    )
    points = (discovery.PRIMITIVES, "all", name), (discovery.ALGORITHMS, "uses", f"{name}.methods:uses")
    package(
        name, points, __init__=f"{top}\nRELAXCOMM_PROTOCOL = 2\n", methods=uses, **(modules if apart else {})
    )
    with pytest.warns(UserWarning, match=f"plug-in 'bad' of {name} is left out: ") as caught:
        discover_all()
    assert len(caught) == 1
    assert says in str(caught[0].message)
    assert registry.primitive("trigger", "good")().facts.period_steps == 1
    for ask in (lambda: registry.primitive("trigger", "bad"), lambda: check("bad")):
        with pytest.raises(PluginError, match=f"'bad' of {name} is left out: ") as raised:
            ask()
        assert says in str(raised.value)
        assert raised.value.__cause__ is not None
    with pytest.raises(RelaxcommError, match="bad"):
        load({"algorithm": "uses"})


def test_what_breaks_all_of_a_package_is_told_once(package):
    points = [(discovery.ALGORITHMS, one, f"wholly_broken.{one}:{one}") for one in ("one", "other")]
    package("wholly_broken", points, __init__="import nobody_has_it\n")
    with pytest.warns(
        UserWarning,
        match="plug-ins 'one', 'other' of wholly_broken are left out: wholly_broken cannot be",
    ) as caught:
        registry.algorithms()
    assert len(caught) == 1


BASES = (
    GOOD.format(name="asks")
    + """
    @abstractmethod
    def shift(self): ...
"""
    + GOOD.format(name="lacks").replace("def fires", "def at_start")
    + GOOD.format(name="plain").replace("@frozen", "")
    + GOOD.format(name="good").replace("(Trigger)", "(lacks)")
    + GOOD.format(name="other").replace("(Trigger)", "(plain)")
)


def test_classes_that_others_derive_from_are_left_out_silently(package):
    name = "with_bases"
    source = f"from abc import abstractmethod\n{BASES}\nRELAXCOMM_PROTOCOL = 2\n"
    package(name, [(discovery.PRIMITIVES, "all", name)], __init__=source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        discover_all()
    triggers = registry.primitives()["trigger"]
    assert {one for one, cls in triggers.items() if cls.__module__ == name} == {"good", "other"}

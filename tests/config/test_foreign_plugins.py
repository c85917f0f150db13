"""Entry points of other packages, which may be anything: what is broken is left out, with one warning."""

import sys
import types
import warnings
from importlib.metadata import EntryPoint

import pytest

from relaxcomm import PluginError
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import discovery, load, registry


@pytest.fixture
def install(monkeypatch):
    found = discovery.entry_points

    def put(name="mine", value="foreign:thing", group=discovery.ALGORITHMS, protocol=1, **content):
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
        ({"thing": 3}, "3 is not a function that returns an Algorithm"),
        ({"thing": dict}, "is not a function that returns an Algorithm"),
        ({"thing": build, "group": discovery.PRIMITIVES}, "is not a complete primitive"),
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


def test_a_module_that_ends_the_process_is_left_out(install, tmp_path, monkeypatch):
    (tmp_path / "ends_at_once.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for group in (discovery.ALGORITHMS, discovery.PRIMITIVES):
        install(value="ends_at_once", group=group)
        with pytest.warns(UserWarning, match="'mine' of ends_at_once is left out: SystemExit: 3"):
            discover_all()


def test_an_algorithm_that_cannot_be_built_says_whose_it_is(install):
    install(thing=fails)
    with pytest.raises(
        PluginError, match=r"algorithm mine \(foreign:thing\) cannot be built: KeyError: 'its own"
    ):
        load({"algorithm": "mine"})

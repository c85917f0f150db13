"""Entry points: one a name, or one for a module's primitives; what is broken is named, the rest works."""

import itertools
import sys
import textwrap

import pytest

import relaxcomm
from relaxcomm.config import registry

TRIGGERS = """
    from relaxcomm.plugin import frozen
    from relaxcomm.primitives import every, every_step

    RELAXCOMM_PROTOCOL = 1


    @frozen
    class seldom(every):
        '''Every so often.'''


    @frozen
    class often(every):
        '''Every so often, too.'''


    @frozen
    class _hidden(every):
        '''Not for users.'''
"""
_numbers = itertools.count()


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Installs a package with what is given as its entry points for a test, and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source, **points):
        module = f"entries_{next(_numbers)}"  # modules stay imported
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {value.format(module)}" for name, value in points.items()]
        (about / "entry_points.txt").write_text("\n".join(["[relaxcomm.primitives]", *lines]))
        registry.primitives.cache_clear()
        return module

    yield write
    registry.primitives.cache_clear()


def test_a_module_stands_for_the_primitives_that_its_package_defines(plugin):
    before = set(registry.primitives()["trigger"])
    module = plugin(TRIGGERS, mine="{}")
    found = registry.primitives()["trigger"]
    assert set(found) - before == {"seldom", "often"}
    assert found["seldom"] is sys.modules[module].seldom
    assert found["every"] is relaxcomm.primitives.every


def test_one_entry_a_name_does_too(plugin):
    plugin(TRIGGERS, rarely="{}:seldom")
    assert registry.primitives()["trigger"]["rarely"].__name__ == "seldom"
    assert "seldom" not in registry.primitives()["trigger"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import a_module_that_nobody_has",
            "ModuleNotFoundError: No module named 'a_module_that_nobody_has'",
        ),
        (TRIGGERS.replace("RELAXCOMM_PROTOCOL = 1", ""), "add RELAXCOMM_PROTOCOL = 1"),
        (TRIGGERS.replace("PROTOCOL = 1", "PROTOCOL = 2"), "written for plug-in protocol 2"),
        ("RELAXCOMM_PROTOCOL = 1", "is not a complete primitive or topology"),
    ],
)
def test_a_broken_module_is_told_once_by_its_entrys_name(plugin, source, said):
    module = plugin(source, mine="{}")
    with pytest.warns(UserWarning, match=f"plug-in 'mine' of {module} is left out: .*{said}") as told:
        assert "every" in registry.primitives()["trigger"]
    assert len(told) == 1


def test_a_bundled_name_cannot_be_taken_and_the_others_are_kept(plugin):
    module = plugin(TRIGGERS.replace("often", "every_round"), a="{}")
    taken = f"plug-in 'every_round' of {module} is left out: the name is already taken by relaxcomm"
    with pytest.warns(UserWarning, match=taken):
        found = registry.primitives()["trigger"]
    assert found["every_round"] is relaxcomm.primitives.every_round
    assert found["seldom"] is sys.modules[module].seldom

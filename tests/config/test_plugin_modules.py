"""Modules of plug-ins are run once, and one whose import fails is named; a plug-in may have a fallback."""

import importlib
import sys
import warnings

import pytest

from relaxcomm.config import registry
from relaxcomm.config.discovery import ALGORITHMS
from relaxcomm.config.plugin_modules import forget_failures, module_named
from relaxcomm.errors import PluginError

METHOD = """
from relaxcomm import Algorithm
def method() -> Algorithm: ...
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a package's modules, where they can be imported."""

    def put(name, **modules):
        (tmp_path / name).mkdir()
        for module, text in modules.items():
            (tmp_path / name / f"{module}.py").write_text(text)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield put
    forget_failures()


def test_an_optional_module_that_is_missing_stays_the_packages_own_business(package):
    package(
        "has_fallback",
        __init__="try:\n    from has_fallback._fast import count\nexcept ImportError:\n    count = len",
        _fast="import a_module_that_nobody_has\ncount = a_module_that_nobody_has.count",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module_named("has_fallback").count is len
    assert "has_fallback._fast" not in sys.modules


BREAKS = {
    "a library": ("import a_module_that_nobody_has", "ModuleNotFoundError: No module named .* .line 1."),
    "its end": ("import sys\nsys.exit(3)", r"SystemExit: 3 \(line 2\)"),
    "a constant": ("\n1 / 0\nCAUTIOUS = False", r"ZeroDivisionError: division by zero \(line 2\)"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_the_module_that_ends_an_import_is_named_and_run_once(what, package):
    text, says = BREAKS[what]
    name = f"broken_{what.replace(' ', '_')}"
    package(
        name,
        __init__=f"import sys\nsys.{name} = getattr(sys, '{name}', 0) + 1\nfrom . import good, uses",
        good=METHOD,
        uses="from .broken import CAUTIOUS",
        broken=text,
    )
    errors = []
    for module in (f"{name}.good", name, f"{name}.uses"):
        with pytest.raises(PluginError, match=rf"^{name}\.broken cannot be imported: {says}$") as raised:
            module_named(module)
        errors.append(raised.value)
    assert len(set(map(id, errors))) == 1
    assert errors[0].__cause__ is not None
    assert getattr(sys, name) == 1


def test_what_has_been_mended_can_be_imported_again(package, tmp_path):
    package("mended", __init__="1 / 0")
    for _ in range(2):
        with pytest.raises(PluginError, match=r"mended cannot be imported: .* \(line 1\)"):
            module_named("mended")
    (tmp_path / "mended/__init__.py").write_text("whole = True")
    importlib.invalidate_caches()
    forget_failures()
    assert module_named("mended").whole


def test_what_a_syntax_error_or_a_missing_module_ends(package):
    package("misspelt", __init__="from . import inner", inner="class (:")
    with pytest.raises(PluginError, match=r"misspelt cannot be imported: SyntaxError: .*inner\.py, line 1"):
        module_named("misspelt")
    with pytest.raises(PluginError, match=r"^nobody_has_it cannot be imported: ModuleNotFoundError"):
        module_named("nobody_has_it.inner")


def test_a_broken_module_that_is_not_imported_leaves_the_others(package, tmp_path):
    name = "one_of_two"
    package(name, __init__="RELAXCOMM_PROTOCOL = 2", good=METHOD, broken=f"import nobody_has_it\n{METHOD}")
    (tmp_path / f"{name}-1.0.dist-info").mkdir()
    (tmp_path / f"{name}-1.0.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    points = (f"{one} = {name}.{one}:method" for one in ("good", "broken"))
    (tmp_path / f"{name}-1.0.dist-info/entry_points.txt").write_text("\n".join((f"[{ALGORITHMS}]", *points)))
    registry.algorithms.cache_clear()
    says = rf"^plug-in 'broken' of {name} is left out: {name}\.broken cannot be imported: Mod.* \(line 1\)$"
    try:
        with pytest.warns(UserWarning, match=says) as caught:
            assert "good" in registry.algorithms()
        assert len(caught) == 1
        with pytest.raises(PluginError, match=rf"{name}\.broken cannot be imported"):
            registry.algorithm("broken")
    finally:
        registry.algorithms.cache_clear()

"""What is broken in a plug-in leaves the rest usable; what the plug-in itself handles stays handled."""

import importlib
import sys
from pathlib import Path

import pytest

from relaxcomm.errors import PluginError
from relaxcomm.fields.broken import or_broken, without_broken


class Trigger:
    """What cannot be made."""


ERRORS = {
    "it lacks fires": PluginError("it lacks fires"),
    "ValueError: of the user": ValueError("of the user"),
}


def derive(broken):
    class Derived(broken):
        pass


USES = {"call": lambda broken: broken(steps=3), "derive": derive, "look": lambda broken: broken.facts}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("reason", ERRORS)
def test_whoever_uses_it_is_told_why(use, reason):
    error = ERRORS[reason]
    broken = without_broken("package", lambda: or_broken(Trigger, error))
    with pytest.raises(PluginError, match=f"^Trigger of {__name__} cannot be used: {reason}$") as raised:
        USES[use](broken)
    assert raised.value.__cause__ is error
    refusal = broken.why()
    assert (str(refusal), refusal.__cause__) == (reason, error)
    assert not hasattr(broken, "__dataclass_fields__")


def test_what_is_broken_outside_of_a_package_that_is_looked_for_raises_its_error():
    finders = list(sys.meta_path)
    with pytest.raises(KeyError):
        without_broken("package", {}.popitem)
    assert sys.meta_path == finders
    with pytest.raises(PluginError, match="it lacks fires"):
        or_broken(Trigger, ERRORS["it lacks fires"])


def _package(folder: Path, monkeypatch, name: str, **modules: str):
    (folder / name).mkdir()
    for module, text in modules.items():
        (folder / name / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return without_broken(name, lambda: importlib.import_module(name))


def test_an_optional_module_that_is_missing_stays_the_packages_own_business(tmp_path, monkeypatch):
    package = _package(
        tmp_path,
        monkeypatch,
        "has_fallback",
        __init__="try:\n    from has_fallback._fast import count\nexcept ImportError:\n    count = len",
        _fast="import a_module_that_nobody_has\ncount = a_module_that_nobody_has.count",
    )
    assert package.count is len
    assert "has_fallback._fast" not in sys.modules


def test_a_module_that_ends_the_import_is_left_out_and_says_why_when_used(tmp_path, monkeypatch):
    package = _package(
        tmp_path,
        monkeypatch,
        "half_broken",
        __init__="from half_broken.a import whole\nfrom .b import broken\nfrom .c import second, third",
        a="whole = 1",
        b="from half_broken.a import whole\nraise OSError('no library')",
        c="second = 2\nraise SystemExit(3)",
    )
    assert package.whole == 1
    with pytest.raises(PluginError, match=r"broken of half_broken\.b cannot be used: .*no library"):
        package.broken()
    assert package.second == 2
    with pytest.raises(PluginError, match=r"half_broken\.c cannot be imported: SystemExit: 3"):
        package.third()
    with pytest.raises(OSError, match="no library"):
        importlib.import_module("half_broken.b")


def test_a_module_of_which_nothing_is_asked_is_warned_of(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match=r"side_effects\.ops is left out, .*no library"):
        package = _package(
            tmp_path,
            monkeypatch,
            "side_effects",
            __init__="from side_effects import ops\nwhole = 1",
            ops="raise OSError('no library')",
        )
    assert package.whole == 1


def test_an_error_of_the_package_itself_is_raised(tmp_path, monkeypatch):
    error = "the_error = OSError('the same each time')\nraise the_error"
    with pytest.raises(OSError, match="the same"):
        _package(tmp_path, monkeypatch, "broken_itself", __init__=error)

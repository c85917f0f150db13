"""Files of plug-ins that are checked without being installed."""

import sys

import pytest

from relaxcomm import ConfigError, PluginError, check
from relaxcomm.checks.suite import findings
from relaxcomm.config import registry
from relaxcomm.config.discovery import load
from relaxcomm.config.plugin_modules import module_at

PLUGIN = """
RELAXCOMM_PROTOCOL = 2
import numpy as np
from relaxcomm.plugin import Partition, Steps, frozen

@frozen
class {name}(Partition):
    '''A partition.

    Args:
        times: more.
    '''
    times: Steps = {times}
    def parts(self, size, labels, num_parts, seed):
        return np.array_split(np.arange(size), num_parts)
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_included", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    registry.algorithms.cache_clear()
    registry.primitives.cache_clear()


def _file(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_each_file_is_the_one_that_is_looked_at(tmp_path):
    one = _file(tmp_path / "a", "plug.py", PLUGIN.format(name="mine", times=1))
    other = _file(tmp_path / "b", "plug.py", PLUGIN.format(name="mine", times=2))
    for file, times in ((one, 1), (other, 2), (one, 1)):
        (point,) = registry.include(file)
        assert point.load()().times == times
        assert registry.primitive("partition", "mine")().times == times
    assert module_at(one) is module_at(one)


def test_a_file_that_has_changed_is_run_again(tmp_path):
    """As in a notebook, where a plug-in is checked, edited and checked again."""
    for times in (1, 2):  # of one length, in one second
        file = _file(tmp_path, "plug_edited.py", PLUGIN.format(name="mine", times=times))
        assert [str(one) for one in check(file) if one.fault] == []
        assert registry.primitive("partition", "mine")().times == times
    with pytest.raises(PluginError, match="plug_edited cannot be imported: SyntaxError"):
        check(_file(tmp_path, "plug_edited.py", "class (:"))
    _file(tmp_path, "plug_edited.py", PLUGIN.format(name="renamed", times=3))
    assert {one.subject for one in check(file)} == {"renamed"}
    assert "mine" not in registry.primitives()["partition"]


def test_what_a_file_imports_from_beside_it_is_its_own_and_new(tmp_path):
    plug = "from plug_helper import TIMES\n" + PLUGIN.format(name="mine", times="TIMES")
    files = {folder: _file(tmp_path / folder, "plug.py", plug) for folder in ("a", "b")}
    for folder, times in (("a", 1), ("b", 2), ("a", 333)):
        _file(tmp_path / folder, "plug_helper.py", f"TIMES = {times}")
        registry.include(files[folder])
        assert registry.primitive("partition", "mine")().times == times
    assert module_at(files["a"]) is module_at(files["a"])


@pytest.mark.parametrize("name", ["random.py", "torch.py", "my.plug-in.py"])
def test_a_file_may_be_called_as_another_module(name, tmp_path):
    found = check(_file(tmp_path, name, PLUGIN.format(name="mine", times=1)))
    assert {one.subject for one in found} == {"mine"}
    assert "import" in {one.check for one in found}
    assert [str(one) for one in found if one.fault] == []


HELPER = """
def helper(array: "Nowhere") -> "Nowhere": ...

def method(steps: int = 3) -> "Algorithm": ...

def typed(array: "Nowhere" = None) -> "Algorithm": ...

from relaxcomm import Algorithm
"""


def test_functions_with_types_for_checkers_alone(tmp_path):
    file = _file(tmp_path, "typed_plug.py", PLUGIN.format(name="mine", times=1) + HELPER)
    points = {point.name: point for point in registry.include(file)}
    assert set(points) == {"mine", "method", "typed"}
    assert load(points["method"]).__name__ == "method"
    with pytest.raises(PluginError, match="NameError: name 'Nowhere' is not defined; import them also where"):
        load(points["typed"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class (:", r"SyntaxError: .*plug_broken\.py, line 1"),
        ("import a_module_that_nobody_has", r"ModuleNotFoundError: .* \(line 1\)"),
        ("import sys\nsys.exit(0)", r"SystemExit: 0 \(line 2\)"),
        ("import asyncio\nraise asyncio.CancelledError", r"CancelledError \(line 2\)"),
    ],
)
def test_a_file_that_cannot_be_run(text, says, tmp_path):
    file = _file(tmp_path, "plug_broken.py", text)
    for _ in range(2):
        with pytest.raises(PluginError, match=f"^plug_broken cannot be imported: {says}"):
            check(file)
    assert "plug_broken" not in sys.modules


def test_a_file_that_never_ends_is_ended(tmp_path):
    file = _file(tmp_path, "endless.py", "while True: pass")
    (found,) = findings(file, {}, limit_seconds=0.5)
    assert str(found).startswith(f"{file} import: FAILED: did not end within 0.5 s")
    assert "endless" not in sys.modules


def test_what_is_no_file_of_python(tmp_path):
    with pytest.raises(ConfigError, match=r"plug\.txt is neither a package's folder nor a file of Python"):
        check(_file(tmp_path, "plug.txt", ""))
    with pytest.raises(KeyboardInterrupt):
        check(_file(tmp_path, "interrupted.py", "raise KeyboardInterrupt"))
    assert "interrupted" not in sys.modules


def test_a_folder_is_looked_at_even_if_its_package_is_installed(tmp_path):
    installed = _file(tmp_path / "site", "plug_twice.py", PLUGIN.format(name="mine", times=1)).parent
    info = tmp_path / "site" / "plug_twice-1.0.dist-info"
    _file(info, "METADATA", "Metadata-Version: 2.1\nName: plug_twice\nVersion: 1.0\n")
    _file(info, "entry_points.txt", "[relaxcomm.primitives]\nmine = plug_twice:mine\n")
    folder = _file(tmp_path / "twice", "plug_twice.py", PLUGIN.format(name="mine", times=2)).parent
    points = '[project.entry-points."relaxcomm.primitives"]\nmine = "plug_twice:mine"\n'
    _file(folder, "pyproject.toml", "[project]\nname = 'plug_twice'\n" + points)
    sys.path.insert(0, str(installed))
    registry.primitives.cache_clear()
    assert [str(one) for one in check(folder) if one.fault] == []
    assert registry.primitive("partition", "mine")().times == 2

    sys.path.remove(str(folder))
    del sys.modules["plug_twice"]
    registry.primitives.cache_clear()
    assert registry.primitive("partition", "mine")().times == 1
    with pytest.raises(
        ConfigError, match=rf"plug_twice is imported from {installed}.* such as \./twice, in a"
    ):
        check(folder)


POINTS = '[project]\nname = "x"\n[project.entry-points."relaxcomm.primitives"]\nmine = "plug_{}:mine"\n'


def test_a_folder_without_a_pyproject(tmp_path):
    _file(tmp_path / "loose", "a.py", "")
    with pytest.raises(
        ConfigError, match=r"it has no pyproject.toml; a file of Python .* such as .*loose/a\.py"
    ):
        check(tmp_path / "loose")
    _file(tmp_path / "two words", "a.py", "")
    with pytest.raises(ConfigError, match=r"such as '.*/two words/a\.py'$"):
        check(tmp_path / "two words")


def test_a_package_that_is_not_in_its_folder(tmp_path):
    _file(tmp_path / "laid", "pyproject.toml", POINTS.format("inside"))
    _file(tmp_path / "laid" / "python", "plug_inside.py", PLUGIN.format(name="mine", times=1))
    with pytest.raises(
        ConfigError, match=r"laid declares plug_inside, which is not in .*laid; put .*laid/src$"
    ):
        check(tmp_path / "laid")
    sys.path.append(str(_file(tmp_path / "site", "plug_other.py", "").parent))
    _file(tmp_path / "shadow", "pyproject.toml", POINTS.format("other"))
    with pytest.raises(
        ConfigError, match=r"is not in .*shadow, and .*plug_other\.py is another; put the package"
    ):
        check(tmp_path / "shadow")


@pytest.mark.parametrize("text", ["[project", "[project]\nentry-points = 3", ""])
def test_a_pyproject_that_cannot_be_read_is_told(text, tmp_path):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"is not a package's folder: pyproject.toml: "):
        check(str(tmp_path))

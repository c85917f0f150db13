"""Modules of plug-ins: imported once, also where that fails."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from relaxcomm.errors import PluginError, worded
from relaxcomm.fields.broken import broken_kept
from relaxcomm.system.time_limit import ENDINGS

_failed: dict[str, PluginError] = {}
_texts: dict[Path, bytes] = {}  # of files that were run here, and of those beside them that these imported
_beside: set[str] = set()  # modules that they imported from beside them


def module_named(name: str) -> ModuleType:
    """The module `name`, in which what stands for broken classes is kept.

    One whose import has failed is not imported again: a second run of it, or of a package around it, would
    repeat what it did before its error.

    Raises: PluginError, from what importing it raised, that names the module that did.
    """
    for one in itertools.accumulate(name.split("."), "{}.{}".format):
        if one in _failed:
            raise _failed[one]
        try:
            with broken_kept():
                importlib.import_module(one)
        except ENDINGS as error:
            error.add_note(f"while the plug-in {one} was being imported")  # which may have no end
            raise
        except BaseException as error:  # also pytest's Skipped, or asyncio's CancelledError
            _failed[one] = _told(one, error)
            raise _failed[one] from error
    return sys.modules[name]


def module_at(file: Path) -> ModuleType:
    """The module in `file`, which is called as the file, or nearly so where another module is called so.

    It is run again where it has changed, or a file beside it that it imported.

    Raises: PluginError, from what running it raised.
    """
    file = file.resolve()
    stem = re.sub(r"\W", "_", file.stem)
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
    name = next(one for one in names if one not in sys.modules or _is_of(sys.modules[one], file))
    if name in sys.modules and _is_as_read(file):
        return sys.modules[name]
    _forget_beside(file.parent)
    before, loader = set(sys.modules), _TextLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # has a loader
    try:
        with broken_kept():
            loader.exec_module(module)
        _texts[file] = file.read_bytes()
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ENDINGS):
            raise
        raise _told(name, error) from error
    finally:
        _keep_beside(file, sys.modules.keys() - before)
    return module


class _TextLoader(SourceFileLoader):
    """Looks at the file alone: caches take two texts of one length from one second for the same."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _is_of(module: ModuleType, file: Path) -> bool:
    return getattr(module, "__file__", None) == str(file)


def _is_as_read(file: Path) -> bool:
    read = {path: text for path, text in _texts.items() if path.parent == file.parent}
    return file in read and all(path.is_file() and path.read_bytes() == text for path, text in read.items())


def _forget_beside(folder: Path) -> None:
    """Have what files in a folder import from beside them imported anew, and not from beside others."""
    for path in [path for path in _texts if path.parent == folder]:
        del _texts[path]
    for name in [name for name in _beside if (folder / f"{name}.py").exists()]:
        _beside.remove(name)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def _keep_beside(file: Path, imported: Iterable[str]) -> None:
    """Keep which of the imported modules lie beside a file, and their texts."""
    for name in imported:
        path = file.with_name(f"{name}.py")
        if path != file and name in sys.modules and _is_of(sys.modules[name], path):
            _beside.add(name)
            _texts[path] = path.read_bytes()


def forget_failures() -> None:
    """Import again what could not be imported: it may have been mended."""
    _failed.clear()


def _told(name: str, error: BaseException) -> PluginError:
    """Whose line has ended an import: of the innermost module of the package."""
    package = name.partition(".")[0]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "<module>" and module.partition(".")[0] == package:
            name, place = module, f" (line {line})"
    return PluginError(f"{name} cannot be imported: {worded(error)}{place}")

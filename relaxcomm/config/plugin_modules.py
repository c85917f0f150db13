"""Modules of plug-ins: imported once, also where that fails."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from relaxcomm.errors import ConfigError, PluginError, worded
from relaxcomm.fields.broken import broken_kept

_failed: dict[str, PluginError] = {}


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
        except (Exception, SystemExit) as error:
            _failed[one] = _told(one, error)
            raise _failed[one] from error
    return sys.modules[name]


def module_at(file: Path) -> ModuleType:
    """The module in `file`, which is called as the file, or nearly so where another module is called so.

    Raises: ConfigError for a file of another kind; PluginError, from what running it raised.
    """
    file = file.resolve()
    stem = re.sub(r"\W", "_", file.stem)
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
    name = next(one for one in names if one not in sys.modules or _is_of(sys.modules[one], file))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is neither a package's folder nor a file of Python, such as plugin.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with broken_kept():
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            raise _told(name, error) from error
        raise
    return module


def _is_of(module: ModuleType, file: Path) -> bool:
    return getattr(module, "__file__", None) == str(file)


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

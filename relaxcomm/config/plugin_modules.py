"""Modules of plug-ins: imported once, also where that fails."""

from __future__ import annotations

import importlib
import itertools
import sys
import traceback
from types import ModuleType

from relaxcomm.errors import PluginError, worded
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

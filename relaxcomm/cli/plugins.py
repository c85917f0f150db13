"""`relaxcomm new-algorithm` and `relaxcomm check`: make a plug-in, and hold it against the contract."""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
import shlex
import string
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

import relaxcomm
from relaxcomm import RELAXCOMM_PROTOCOL, plugin, primitives
from relaxcomm.checks.suite import LIMIT_SECONDS, findings
from relaxcomm.cli.exit_codes import RunFailed, readable
from relaxcomm.cli.job import parse_set
from relaxcomm.cli.options import Seconds, Traceback, option, written
from relaxcomm.config import registry
from relaxcomm.errors import ConfigError
from relaxcomm.system.files import check_folder

_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "__init__.py": "$package/__init__.py",
    "algorithm.py": "$package/algorithm.py",
    "compressor.py": "$package/compressor.py",
    "test_contract.py": "tests/test_contract.py",
}


def new_algorithm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As users will type it: lower case, with _.")],
    folder: Annotated[
        Path | None,
        option("Where; a new folder of that name unless given.", metavar="FOLDER"),
    ] = None,
    traceback: Traceback = False,
) -> None:
    """Make an installable package with an algorithm, a compressor and their tests."""
    with readable(traceback):
        check_name(name)
        folder = folder or Path(name)
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigError(f"{folder} is there, and is no empty folder; give another with --folder")
        check_folder("--folder", folder)
        for path in _write(folder, name):
            typer.echo(path)
        typer.echo(f"next: pip install -e {shlex.quote(str(folder))}; relaxcomm check {name}")


def check_name(name: str) -> None:
    """Refuse a name that is none in Python, or that would hide what its own package or others import.

    Raises: ConfigError.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is no name for an algorithm; use lower-case letters, digits and _")
    if name in registry.algorithms():
        raise ConfigError(f"{name!r} is taken by {registry.algorithms()[name].origin}; choose another name")
    other = f"choose another name, such as my_{name}"
    if any(name in vars(one) for one in (relaxcomm, plugin, primitives)) or any(
        name in found for found in registry.primitives().values()
    ):
        raise ConfigError(f"{name!r} is the name of a primitive or function of relaxcomm; {other}")
    if name in vars(builtins) or name in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} would hide Python's own {name}; {other}")
    for module in (name, f"relaxcomm_{name}"):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:  # a mere folder has none
            raise ConfigError(f"{name!r} would hide the module {module} ({spec.origin}); {other}")


def _write(folder: Path, name: str) -> list[Path]:
    values = {
        "name": name,
        "package": f"relaxcomm_{name}",
        "distribution": f"relaxcomm-{name.replace('_', '-')}",
        "compressor": f"{name}_part",
        "protocol": str(RELAXCOMM_PROTOCOL),
        "version": "0.1",
    }
    written = []
    templates = resources.files("relaxcomm.cli") / "template"
    for source, target in _FILES.items():
        path = folder / string.Template(target).substitute(values)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (templates / f"{source}.txt").read_text(encoding="utf-8")
        path.write_text(string.Template(text).substitute(values), encoding="utf-8")
        written.append(path)
    return written


def check(
    target: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="Installed name, a package's folder, or a file.")
    ],
    sets: Annotated[
        list[str] | None,
        option("A parameter: --set steps=8; repeatable.", "--set", metavar="KEY=VALUE"),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(parser=written(Seconds), metavar="SECONDS", help="The longest that one check may take."),
    ] = LIMIT_SECONDS,
    traceback: Traceback = False,
) -> None:
    """Run the contract suite on an algorithm or primitive; exit code 1 if a check fails."""
    with readable(traceback):
        failed = total = 0
        first: dict[tuple[str, str], str] = {}  # check that has found a fault
        for finding in findings(target, dict(parse_set(one) for one in sets or []), timeout):
            total += 1
            if finding.fault is not None:
                failed += 1
                found_by = first.setdefault((finding.subject, finding.fault), finding.check)
                if found_by != finding.check:
                    finding = replace(finding, fault=f"as {found_by}")
            typer.echo(str(finding))
        if failed:
            raise RunFailed(f"{failed} of {total} checks failed")

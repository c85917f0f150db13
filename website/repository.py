"""The repository's files that pages link to, as pages of the site, and their links mended."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

_PLACES = (
    ("docs/README.md", "index.md"),
    ("docs/", ""),
    ("benchmarks/results/README.md", "evidence/runs.md"),
    ("benchmarks/results/", "evidence/"),
    ("benchmarks/README.md", "evidence/lab.md"),
    ("README.md", "project/readme.md"),
    ("", "project/"),
)
"""Where a file of the repository lies on the site, by the first of these that its path begins with."""

_ALSO = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")
EXAMPLES = tuple(
    f"examples/{name}.py"
    for name in ("training_loop", "two_sites", "write_selsync", "federated_clients", "run_log")
)
"""Scripts that have pages made by running them, see `website.examples`."""

_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sbatch": "bash", ".toml": "toml"}
_FENCED = re.compile(r"(^ *```.*?^ *```$|`[^`\n]*`)", flags=re.MULTILINE | re.DOTALL)
_DRAWING = re.compile(r"^!\[([^\]]*)\]\(([\w-]+\.svg)\)$", flags=re.MULTILINE)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")


def place(path: str) -> str:
    """Where a file lies on the site.

    Example:
        >>> place("docs/README.md"), place("docs/plan.md"), place("examples/slurm/train.sbatch")
        ('index.md', 'plan.md', 'project/examples/slurm/train.sbatch.md')
    """
    if path in EXAMPLES:
        return path.replace(".py", ".rst")
    begins, instead = next(pair for pair in _PLACES if path.startswith(pair[0]))
    shown = ".md" if Path(path).suffix in _LANGUAGES else ""
    return instead + ("" if instead.endswith(".md") else path.removeprefix(begins) + shown)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """A page whose code is left as it is."""
    return "".join(part if index % 2 else change(part) for index, part in enumerate(_FENCED.split(text)))


def linked(path: str, text: str) -> Iterator[str]:
    """The repository's files that a page links to."""
    for part in _FENCED.split(text)[::2]:
        for _, target, _, _ in _LINK.findall(part):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def mended(path: str, text: str) -> str:
    """A page with its links as they are on the site."""
    here = posixpath.dirname(place(path)) or "."

    def mend(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
        if not (ROOT / target).is_file():
            return found[0]  # a page that is made, or a mistake, which the build tells
        return f"{found[1]}{posixpath.relpath(place(target), here)}{found[3] or ''}{found[4]}"

    return _outside_code(text, lambda part: _LINK.sub(mend, part))


def as_page(path: str) -> str:
    """A text file of the repository as a page: with a title, its plot and mended links; or its code."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = _LANGUAGES.get(Path(path).suffix)
    if language is not None:
        return f"# {path}\n\n````{language}\n{text}````\n"
    if not text.startswith("# "):
        plot = f"\n![Plot]({Path(path).stem}.png)\n" if _plot(path) else ""
        text = f"# {Path(path).stem}\n{plot}\n" + re.sub(r"^###", "##", text, flags=re.MULTILINE)
    return mended(path, _drawn(path, text))


def _drawn(path: str, text: str) -> str:
    """A page with its drawings in it, which take the colours of the page there."""

    def draw(found: re.Match[str]) -> str:
        picture = (ROOT / path).parent / found[2]
        panels = _panels(picture.read_text(encoding="utf-8").strip())
        style = "drawn panels" if len(panels) > 1 else "drawn"
        return f'<div class="{style}" role="img" aria-label="{found[1]}">\n{"".join(panels)}\n</div>\n'

    return _DRAWING.sub(draw, text)


def _panels(picture: str) -> list[str]:
    """The panels of a picture (`website.pictures`), each as a picture, so that they wrap on a phone."""
    head, _, rest = picture.partition("</style>")
    bodies = re.findall(r'<svg x="\d+" width="(\d+)"[^>]*>(.*?)</svg>', rest, flags=re.DOTALL)
    own = [(re.sub(r"(?<=viewBox=.0 0 )\d+", width, head), body) for width, body in bodies]
    return [f"{opened}</style>{body}</svg>" for opened, body in own] or [picture]


def _plot(path: str) -> list[str]:
    """The plot that lies beside a result, if there is one."""
    found = Path(path).with_suffix(".png")
    return [str(found)] if (ROOT / found).is_file() else []


def files() -> list[str]:
    """The repository's files that the site has: all in docs/, and what these link to, or those in turn."""
    own = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*") if path.is_file()]
    waiting, seen = [*_ALSO, *own], set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen or path in EXAMPLES or not (ROOT / path).is_file():
            continue
        seen.add(path)
        if path.endswith(".md"):
            waiting += [*linked(path, (ROOT / path).read_text(encoding="utf-8")), *_plot(path)]
    return sorted(seen)

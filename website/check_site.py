"""Every link of the built site leads somewhere, and no page loads anything from another host."""

from __future__ import annotations

import posixpath
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        loaded = given.get(_LOADED.get(tag, ""))
        if loaded and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(loaded)


def faults(site: Path) -> list[str]:
    """What is wrong with the links and the sources of a built site, a line each."""
    pages = {
        str(path.relative_to(site)): _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")
    }
    found = [] if "index.html" in pages else ["there is no index.html, which hosts show first"]
    for name, page in pages.items():
        if name == "404.html":  # its links begin at the host that serves it
            continue
        found += [f"{name} loads {one}" for one in page.loads if urlsplit(one).netloc]
        for link in {*page.links, *page.loads}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path) or "."))
            target = name if not parts.path else target
            target = posixpath.join(target, "index.html") if (site / target).is_dir() else target
            if not (site / target).is_file():
                found.append(f"{name} links to {link}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {link}, and there is no such anchor")
    for sheet in site.rglob("*.css"):
        if "url(http" in (text := sheet.read_text(encoding="utf-8")) or "@import" in text:
            found.append(f"{sheet.relative_to(site)} loads something from another host")
    return found


if __name__ == "__main__":
    lines = faults(Path(sys.argv[1]))
    print("\n".join(lines) or "every link leads somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(lines))

"""Which pages stand in the site's sidebar, and in which order."""

from __future__ import annotations

from website.families import FAMILIES

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("start", "installing", "scripts", "configuration", "examples/index"),
    "Concepts": ("concepts/rule", "concepts/step", "concepts/message"),
    "How-to": (
        "which-algorithm",
        "all-algorithms",
        "plan",
        "coming-from-ddp",
        "integrations/README",
        "shapes",
        "composing",
        "gradient-accumulation",
        "uneven-inputs",
        "monitoring",
        "restarts",
        "failures",
        "elastic",
        "security",
        "gpus",
        "accuracy",
        "slower-than-before",
    ),
    "Write your own": tuple(
        f"write/{name}"
        for name in (
            "algorithm",
            "compressor",
            "exchange",
            "trigger",
            "topology",
            "payload",
            "outer",
            "controller",
        )
    ),
    "Algorithms": ("algorithms/README",),
    "Reference": tuple(
        f"reference/{name}"
        for name in ("configuration", "command-line", "relaxcomm", "primitives", "plugin", "integrations")
    ),
    "Evidence": ("evidence", "evidence/runs", "evidence/lab", "evidence/claims-20261122"),
    "Architecture": ("architecture",),
    "Project": ("project/readme", "project/CHANGELOG", "project/CONTRIBUTING", "project/SECURITY"),
}

BELOW: dict[str, tuple[str, ...]] = {
    "algorithms/README": tuple(f"algorithms/{name}" for names in FAMILIES.values() for name in names),
    "integrations/README": tuple(
        f"integrations/{name}"
        for name in (
            "accelerate",
            "fsdp2",
            "lightning",
            "ray",
            "torchtitan",
            "transformers",
            "slurm",
            "kubernetes",
        )
    ),
}
"""Pages that stand below another one."""


CALLED = {"project/readme": "README"}
"""What the sidebar calls pages whose own titles are those of other pages, too."""


MADE = ("algorithms/", "examples/", "reference/")
"""Where pages lie that are made, and are no files of the repository."""


def contents(pages: tuple[str, ...], caption: str = "") -> str:
    """A table of contents that the sidebar shows and the page does not."""
    lines = [
        "",
        "```{toctree}",
        ":hidden:",
        *([f":caption: {caption}"] if caption else []),
        "",
        *(f"{CALLED[page]} <{page}>" if page in CALLED else page for page in pages),
        "```",
        "",
    ]
    return "\n".join(lines)


def with_contents(page: str, text: str) -> str:
    """A page with the pages below it; one that the sidebar does not show says so."""
    if page == "index":
        return text + "".join(contents(pages, caption) for caption, pages in SECTIONS.items())
    if page in BELOW:
        return text + contents(tuple(f"/{one}" for one in BELOW[page]))
    shown = {one for pages in (*SECTIONS.values(), *BELOW.values()) for one in pages}
    return text if page in shown else f"---\norphan: true\n---\n{text}"

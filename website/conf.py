"""Sphinx's configuration of the documentation site, see `make docs`."""

import sys
import tomllib
from pathlib import Path

from docutils import nodes

_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT))

from website import examples  # noqa: E402
from website.docstring_sections import as_google  # noqa: E402  # Sphinx runs this file in its own folder

_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "relaxcomm"
copyright = "the relaxcomm authors"
version = release = _PROJECT["version"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.githubpages",  # which would leave out folders whose names begin with an underscore
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
root_doc = "index"

html_theme = "furo"  # light and dark, and nothing from another host
html_title = f"relaxcomm {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp, .go"

myst_heading_anchors = 4  # as GitHub makes them
myst_enable_extensions = ["attrs_inline"]

exclude_patterns = [examples.SOURCES]
sphinx_gallery_conf = {
    "examples_dirs": examples.SOURCES,
    "gallery_dirs": "examples",
    "filename_pattern": r"\.py$",
    "copyfile_regex": r"index\.rst",
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": float("inf"),
    "image_srcset": ["2x"],
}

smartquotes_action = "qe"  # options begin with two hyphens
default_role = "code"  # docstrings are read in a terminal, too, so single backticks are code
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
autodoc_mock_imports = ["accelerate", "ray", "torchtitan", "transformers"]
python_maximum_signature_line_length = 88
python_display_short_literal_types = True
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def _read(app: object, kind: str, name: str, target: object, options: object, lines: list[str]) -> None:
    """Bring a docstring into the form that napoleon knows."""
    lines[:] = as_google("\n".join(lines)).splitlines()


def _set_dashes(app: object, doctree: nodes.document) -> None:
    """Between a parameter and what it means Sphinx counts on smart quotes, which leave hyphens here."""
    for text in [one for one in doctree.findall(nodes.Text) if one == " -- "]:
        text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: object) -> None:
    """Read docstrings in the house's form, before napoleon does."""
    app.connect("autodoc-process-docstring", _read, priority=400)
    app.connect("doctree-read", _set_dashes)

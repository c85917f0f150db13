"""The site's sources are complete, and a broken link of the built site is found."""

import re

import pytest

from tests.test_readme import ROOT
from tests.test_rooms import ROOMS
from website import check_site, navigation, repository


def test_links_out_of_docs_lead_to_pages_of_the_site():
    text = (
        "[a](../benchmarks/README.md#x) [b](gpus.md) `[c](../README.md)` ![d](../benchmarks/results/demo.png)"
    )
    assert repository.mended("docs/plan.md", text) == (
        "[a](evidence/lab.md#x) [b](gpus.md) `[c](../README.md)` ![d](evidence/demo.png)"
    )
    assert repository.mended("README.md", "[a](docs/plan.md)") == "[a](../plan.md)"


def test_what_is_linked_to_is_there_also_through_other_pages():
    files = repository.files()
    assert {"docs/plan.md", "examples/frameworks/ray/after.py", "CHANGELOG.md"} <= set(files)
    assert any(re.fullmatch(r"benchmarks/results/lab-glyphs-.*\.png", path) for path in files)


def test_each_page_in_docs_is_in_the_sidebar_and_each_in_the_sidebar_is_there():
    shown = [one for pages in (*navigation.SECTIONS.values(), *navigation.BELOW.values()) for one in pages]
    assert len(shown) == len(set(shown))
    own = {repository.place(path)[:-3] for path in repository.files() if path.endswith(".md")}
    in_docs = {path[5:-3] for path in repository.files() if path.startswith("docs/") and path.endswith(".md")}
    assert in_docs - set(shown) == {"README"}
    assert {one for one in shown if not one.startswith(navigation.MADE)} <= own


def test_the_readme_is_not_called_as_the_reference_is():
    text = navigation.with_contents("index", "")
    assert "\nreference/relaxcomm\n" in text  # by its title, relaxcomm
    assert "\nREADME <project/readme>\n" in text


def test_code_is_shown_as_code():
    page = repository.as_page("examples/slurm/train.sbatch")
    assert page.startswith("# examples/slurm/train.sbatch\n\n````bash\n#!")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="b.html">', "links to b.html, which is not there"),
        ('<a href="#c">', "links to #c, and there is no such anchor"),
        ('<script src="https://x.org/a.js"></script>', "loads https://x.org/a.js"),
        ('<a href="a.html#here">x</a> <p id="here">', None),
    ],
)
def test_faults_of_a_built_site(body, fault, tmp_path):
    (tmp_path / "index.html").write_text("")
    (tmp_path / "a.html").write_text(body)
    assert check_site.faults(tmp_path) == ([] if fault is None else [f"a.html {fault}"])


def test_a_site_begins_somewhere(tmp_path):
    (tmp_path / "a.html").write_text("")
    assert check_site.faults(tmp_path) == ["there is no index.html, which hosts show first"]


def test_the_site_is_in_the_source_archive():
    assert "graft website" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()


def test_pictures_are_what_the_primitives_draw():
    from website import pictures

    drawn = pictures.pictures()
    assert {path.name for path in pictures.FOLDER.glob("*.svg")} == set(drawn)
    for file, text in drawn.items():
        assert (pictures.FOLDER / file).read_text(encoding="utf-8") == text, "run python -m website.pictures"


def test_a_drawing_is_put_into_its_page():
    page = repository.as_page("docs/concepts/rule.md")
    assert page.count('<div class="drawn panels"') == 6
    assert page.count("<svg") == page.count("</svg>") == 14  # four have two panels, two have three
    assert 'viewBox="0 0 300 190"' in page
    assert ".svg)" not in page


def test_every_room_is_on_the_page_of_the_architecture():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {room.partition(".")[0] for room in ROOMS} <= named

"""Each bundled algorithm has a page, of facts that are looked up and not written down."""

import pytest

from relaxcomm.config import registry
from relaxcomm.fields import docstrings
from tests.test_readme import ROOT
from website import algorithm_pages, costs, measured
from website.families import FAMILIES

BUNDLED = {name: entry for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm"}


def test_each_is_in_one_family():
    assert sorted(name for names in FAMILIES.values() for name in names) == sorted(BUNDLED)


@pytest.mark.parametrize("name", ["diloco", "choco_sgd"])
def test_a_page_has_what_is_declared(name):
    page, text = algorithm_pages.page(BUNDLED[name]), docstrings.read(BUNDLED[name].build)
    assert page.startswith(f"# {name}\n\n{text.summary}\n\n{text.body[0]}\n")
    assert text.reference in page
    assert text.example in page
    for rule in BUNDLED[name]().rules:
        assert f"<code>{rule.exchange!r}</code>" in page


def test_advice_is_that_of_the_page_of_advice():
    page = algorithm_pages.page(BUNDLED["diloco"])
    assert "- Where an exchange takes hundreds of steps: made for hundreds of local steps." in page
    (row,) = [one for one in advice().splitlines() if one.startswith("| `diloco` |")]
    assert f"It fails when {row.split(' | ')[1]}." in page


def advice() -> str:
    return (ROOT / "docs/which-algorithm.md").read_text(encoding="utf-8")


def test_bytes_are_replayed():
    (row,) = [one for one in costs.table(BUNDLED["bsp"]()).splitlines() if one.startswith("| 4 |")]
    assert row.startswith("| 4 | 6 MB |")  # 2 (4 - 1) / 4 of 4 MB


def test_what_was_not_measured_is_not_shown():
    assert measured.section("nobody") == ""
    assert "<circle" in measured.section("diloco")


@pytest.mark.parametrize("name", BUNDLED)
def test_each_has_a_curve_beside_those_of_bsp_and_of_never_exchanging(name):
    assert measured.section(name).count("<polyline") == (2 if name == "bsp" else 3)


def test_an_optimizer_of_its_own_is_told():
    assert "Adam with an eps of 0.001 in the place of SGD, learning rate 0.002" in measured.section("des_loc")
    assert "Adam" not in measured.section("diloco")

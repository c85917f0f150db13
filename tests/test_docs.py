"""What the pages show works as it stands: Python runs, YAML loads, commands parse, links lead somewhere."""

import doctest
import inspect
import re
import shlex
import textwrap

import pytest
import yaml
from torch.distributed.run import get_args_parser

import relaxcomm
from relaxcomm import Algorithm, config
from relaxcomm.checks.declarations import words_are_there
from relaxcomm.cli.app import imported
from relaxcomm.config import registry
from relaxcomm.config.primitive_classes import is_primitive
from tests.shape_tests import HELD
from tests.test_readme import ROOT

PAGES = {
    str(path.relative_to(ROOT)): re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path in (
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs").glob("[cw]*/*.md")),
        *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"),
    )
}
PRINTED = {
    "docs/which-algorithm.md": "an exchange takes 1.8 s, 8.8 times a step\nwith steps=88 ",
    "docs/restarts.md": "18\n",
    "docs/gradient-accumulation.md": "3\n",
    "docs/uneven-inputs.md": "True\n",
    "docs/composing.md": "use the payload deltas()",
    "docs/gpus.md": "84 bytes, 0 waits of the host",
    "docs/failures.md": "DeadlockError: rank 0 at step 3",
    "docs/slower-than-before.md": "waiting in it ",
    "docs/shapes.md": "4 4\n",
    "docs/start.md": "local_sgd: loss 0.0",
    "docs/scripts.md": "'steps': 48",
    "docs/write/algorithm.md": "7 exchanges, replicas equal: True",
    "docs/write/compressor.md": "[[2.0, 0.0], [2.0, 4.0]]",
    "docs/write/exchange.md": "deltas() keeps an anchor that must stay the same on all ranks",
    "docs/write/trigger.md": "exchanges in 20 steps",
    "docs/write/topology.md": "sliding_pairs() [2.0, 2.0, 2.0, 2.0] 1 links an exchange",
    "docs/write/payload.md": "[0.75, 0.5, 0.875]\n[[2.0, 4.0], [4.5, 4.5]]\nages [1, 1]\n",
    "docs/write/outer.md": "True\n",
    "docs/write/controller.md": "in steps [1, 3, 6]",
    "docs/concepts/step.md": "[0, 0, 20, 0, 0, 20]",
    "docs/concepts/message.md": "10 entries in 84 bytes",
}
OTHER_PROGRAMS = {"make", "pip", "export", "openssl", "python", "python3", "srun"}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page, also those inside lists."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in found]


def commands() -> list[tuple[str, list[str]]]:
    texts = [(page, text.replace("\\\n", " ")) for page in PAGES for text in blocks(page, "console")]
    lines = [(page, line) for page, text in texts for line in text.splitlines()]
    return [(page, shlex.split(line[2:], comments=True)) for page, line in lines if line.startswith("$ ")]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relaxcomm.yaml").write_text("algorithm: {name: local_sgd, steps: 8}\n")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def run_examples(names: dict[str, object]) -> None:
    """Run the examples in the docstrings of what a page has made."""
    for name, made in names.items():
        text = inspect.getdoc(made) if getattr(made, "__module__", "") == "page" else None
        test = doctest.DocTestParser().get_doctest(text or "", dict(names), name, None, None)
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0, name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_runs(page, elsewhere, capsys):
    names: dict[str, object] = {"__name__": "page"}
    for text in blocks(page, "python"):
        exec(compile(text, page, "exec"), names)
    run_examples(names)
    for made in names.values():
        if is_primitive(made) and made.__module__ == "page":
            words_are_there(made)
    assert PRINTED.get(page, "") in capsys.readouterr().out


@pytest.mark.every_other("name", of=3)
@pytest.mark.parametrize(
    ("page", "name"),
    [
        *(
            ("docs/write/compressor.md", name)
            for name in ("in_parts", "k_largest", "five_levels", "econtrol")
        ),
        ("docs/write/payload.md", "clipped_gradients"),
        ("docs/write/trigger.md", "on_rising_loss"),
        *(("docs/write/outer.md", name) for name in ("adagrad_steps", "extrapolated", "deltas_and_norms")),
        *(("docs/write/controller.md", name) for name in ("when_due", "noise_period")),
        *(("docs/write/exchange.md", name) for name in ("lean", "lean_on_copies")),
    ],
)
def test_the_primitives_that_a_page_makes_keep_the_contract(page, name, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_included", [])
    module = f"further_{name}"
    source = "\n".join(blocks(page, "python"))
    (tmp_path / f"{module}.py").write_text(f"RELAXCOMM_PROTOCOL = 2\n{source}")
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "x"\n[project.entry-points."relaxcomm.primitives"]\n{name} = "{module}:{name}"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = relaxcomm.check(tmp_path)
    finally:
        registry.algorithms.cache_clear()
        registry.primitives.cache_clear()
    assert len(found) > 5
    assert [str(one) for one in found if one.fault] == []


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")])
def test_yaml_loads(page):
    for text in blocks(page, "yaml"):
        assert isinstance(config.load(yaml.safe_load(text)).algorithm, Algorithm)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "diff")])
def test_both_sides_of_a_diff_are_python(page):
    for text in blocks(page, "diff"):
        for side in "-+":
            kept = [line[2:] for line in text.splitlines() if line[:1] in (side, " ")]
            compile("\n".join(kept), page, "exec")


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda one: one if isinstance(one, str) else "")
def test_commands_parse(page, command):
    program, *arguments = command
    if program == "torchrun":
        parsed = get_args_parser().parse_args(arguments)
        if not parsed.module:
            return
        assert parsed.training_script == "relaxcomm"
        program, arguments = "relaxcomm", parsed.training_script_args
    if program != "relaxcomm":
        assert program in OTHER_PROGRAMS
        return
    name, *arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
    imported(name).make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_names(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[page]):
        assert ((ROOT / page).parent / target).exists(), target


def test_each_shape_is_held_by_tests_that_there_are():
    rows = [line for line in PAGES["docs/shapes.md"].splitlines() if line.startswith("| ")]
    shapes = [row.removeprefix("| ") for row in rows if row != "| shape | with relaxcomm |"]
    assert len(shapes) == len(HELD) > 30
    for shape in shapes:
        assert sum(shape.startswith(begins) for begins in HELD) == 1, shape
    for files in HELD.values():
        assert all((ROOT / "tests" / file).exists() for file in files), files


def test_every_page_is_on_the_index():
    listed = set(re.findall(r"\]\(([\w/-]+\.md)\)", PAGES["docs/README.md"]))
    there = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert listed - {"integrations/README.md"} == there - {"README.md"}


def test_every_algorithm_that_is_advised_is_installed_and_the_other_way_round():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGES["docs/which-algorithm.md"], flags=re.MULTILINE)
    advised = {name for row in rows for name in re.findall(r"\w+", row)}
    assert advised == {name for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm"}


def test_the_paper_of_every_algorithm_is_cited():
    from relaxcomm.fields import docstrings

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    titles = [one["title"] for one in citation["references"]]
    assert len(set(titles)) == len(titles)
    for entry in registry.algorithms().values():
        reference = docstrings.read(entry.build).reference
        if entry.origin == "relaxcomm" and reference:
            assert any(title in reference for title in titles), reference


def test_citation_and_changelog_are_of_this_version():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["title"], citation["version"]) == (project["name"], project["version"])
    newest = f"## [{citation['version']}] - {citation['date-released']}"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[\d.*", changes, flags=re.MULTILINE)[0] == newest

"""Each example runs as it stands and shows what its text says; its page and its notebook are made from it."""

import ast
import runpy

import matplotlib.pyplot as plt
import pytest

from tests.ranks import run_ranks
from tests.test_readme import ROOT
from website import examples
from website.repository import EXAMPLES


@pytest.fixture
def example(monkeypatch):
    """Runs a script and gives its names; what it draws is made and not shown."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(plt, "show", lambda: plt.gcf().canvas.draw())
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield lambda name: runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    plt.close("all")


def test_a_training_loop_sends_less(example, capsys):
    found = example("training_loop")["found"]
    (_, bsp), (accuracy, local), (_, sparse) = found.values()
    assert accuracy > 0.85
    assert bsp["bytes_sent"] > 7 * local["bytes_sent"] > 14 * sparse["bytes_sent"]
    assert capsys.readouterr().out.count(" MB  local steps ") == 3


def train_under_torchrun(rank):
    names = runpy.run_path(str(ROOT / "examples/training_loop.py"))
    return {name: statistics["bytes_sent"] for name, (_, statistics) in names["found"].items()}


@pytest.mark.slow
@pytest.mark.ranks
def test_a_training_loop_runs_on_processes():
    sent = run_ranks(train_under_torchrun, 3)
    assert all(one["bsp"] > 7 * one["local_sgd, 8 steps"] for one in sent)


def test_two_sites_take_a_fraction_of_the_time(example):
    found = example("two_sites")["found"]
    (_, reached, _) = found["bsp"]
    for name in ("local_sgd", "diloco"):
        seconds, accuracies, _ = found[name]
        assert seconds[-1] < found["bsp"][0][-1] / 7
        assert accuracies[-1] >= reached[-1] - 0.01


def test_selsync_written_anew_is_the_bundled_one(example, capsys):
    names = example("write_selsync")
    assert names["same"]
    assert names["mine"][2]["bytes_sent"] == names["theirs"][2]["bytes_sent"]
    assert names["sparse"][2]["bytes_sent"] < names["mine"][2]["bytes_sent"] / 3
    assert "CompositionError: " in capsys.readouterr().out


@pytest.mark.slow
def test_skewed_clients_learn_less(example):
    alike, skewed, everyone = (
        accuracies[-1] for accuracies in example("federated_clients")["found"].values()
    )
    assert alike > everyone > skewed


def test_a_run_log_is_read(example):
    names = example("run_log")
    assert (
        len(names["synchronisations"])
        == names["summary"]["synchronisations"]
        < 0.4 * names["summary"]["steps"]
    )
    assert len(names["evaluations"]) == 12
    last = names["synchronisations"][-1]
    assert last["bytes_sent"] < 0.4 * last["bytes_uncompressed"]


def test_each_script_is_on_the_site_and_in_its_index():
    assert sorted(EXAMPLES) == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*.py"))
    index = examples.index()
    for path in EXAMPLES:
        assert index.count(path.removeprefix("examples/").removesuffix(".py")) == 2
        assert examples.summary(path).endswith(".")
        assert len(examples.summary(path)) > 40
    for path in EXAMPLES:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert "\n# %%\n" in text, "cells, of which notebooks are made"
        ast.parse(text)

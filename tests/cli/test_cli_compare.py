"""`relaxcomm compare` and `relaxcomm algorithms`, and what they print off a terminal."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from relaxcomm import CompositionError, ConfigError
from relaxcomm.cli.app import app
from relaxcomm.cli.compare import make_jobs, split_names, summary
from relaxcomm.cli.exit_codes import RunFailed, describe
from relaxcomm.cli.job import parse_set, read_job, tell_of_phases
from relaxcomm.cli.plot import plot
from relaxcomm.cli.table import cells, title
from relaxcomm.config import registry
from relaxcomm.training.results import Point, Result

FAILING = """\
import os
from dataclasses import replace
from pathlib import Path
from relaxcomm.tasks.digits import make as digits


def make(seed: int):
    task = digits(seed, epochs=1, hidden=[16])
    fails = os.environ["RANK"] == "0" and not Path("tried").exists()

    def loss(model, batch):
        if fails:  # in the first comparison of all
            Path("tried").touch()
            raise ValueError("not with this one")
        return task.loss(model, batch)

    return replace(task, loss=loss)
"""


def result(name: str, sent: int, device: str = "cpu") -> Result:
    return Result(
        algorithm=name,
        composition="…",
        task="digits",
        metric="accuracy",
        higher_is_better=True,
        measure=0.98,
        workers=2,
        device=device,
        seed=0,
        seconds=1.5,
        steps=10,
        synchronisations=5,
        lssr=0.5,
        bytes_sent=sent,
        bytes_received=sent,
        evaluation_bytes_sent=0,
        bytes_uncompressed=4_000_000,
        step_seconds=0.1,
        exposed_communication_seconds=0.6,
        hidden_communication_seconds=0.2,
        bytes_by_primitive={"all_reduce": sent - sent // 10, "vote": sent // 10},
        history=(Point(5, 0.7, sent // 2, 0.9), Point(10, 1.5, sent, 0.98)),
    )


@pytest.mark.ranks
def test_compare_prints_a_row_each_and_draws(start, folder):
    arguments = ("--algorithms", "bsp,local_sgd", "--set", "algorithm.steps=23", "--set", "output=compared")
    finished = start("compare", "quick.yaml", *arguments, "--set", "task=mine.job:make").finish()
    assert (finished.code, finished.left_over) == (0, False), finished.err
    lines = finished.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["algorithm", "bsp", "local_sgd"]
    assert len({len(line) for line in lines[:3]}) == 1, "columns are aligned and nothing is wrapped"
    assert lines[-3].startswith("link: none simulated; the workers shared one machine, --link 100mbit,5ms")
    assert lines[-2:] == ["plot: compared/quick.png", "report: compared/quick.html"]
    assert (folder / "compared" / "quick.html").read_text().count("<svg") == 5
    assert (folder / "compared" / "quick.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    bsp, local = (
        json.loads((folder / "compared" / f"{name}.json").read_text()) for name in ("bsp", "local_sgd")
    )
    assert (bsp["synchronisations"], local["synchronisations"]) == (46, 2)
    # Above 1 is what attach sends once.
    assert 1 <= bsp["bytes_sent"] / bsp["bytes_uncompressed"] < 1.1
    assert bsp["bytes_uncompressed"] == local["bytes_uncompressed"]
    assert local["bytes_sent"] < bsp["bytes_sent"] / 5
    for found in (bsp, local):
        sent = [point["bytes_sent"] for point in found["history"]]
        assert sent == sorted(sent), "an evaluation's own average is no part of the training"
        assert sum(found["bytes_by_primitive"].values()) == found["bytes_sent"] == sent[-1]
    # Two averages of training; one for each evaluation, the last of them that of the end.
    assert local["evaluation_bytes_sent"] * 2 == local["bytes_by_primitive"]["all_reduce"] * len(
        local["history"]
    )


@pytest.mark.slow
@pytest.mark.ranks
def test_one_that_fails_leaves_the_others_their_results_on_a_simulated_link(start, folder):
    (folder / "failing.py").write_text(FAILING)
    (folder / "partly.yaml").write_text("algorithm: local_sgd\ntask: failing:make\nbackend: gloo\n")
    arguments = ("--algorithms", "slowmo,bsp", "--link", "5mbit,10ms", "--set", "output=partly")
    finished = start("compare", "partly.yaml", *arguments).finish()
    assert (finished.code, finished.left_over) == (1, False)
    lines = finished.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["algorithm", "bsp", "slowmo"]
    assert lines[2].startswith("slowmo  failed: rank 0: ValueError: not with this one (at ")
    assert lines[3] == "link: simulated, 5 Mbit/s, 10 ms for each worker"
    assert "relaxcomm: error: 1 of 2 algorithms failed: slowmo" in finished.err
    result = json.loads((folder / "partly" / "bsp.json").read_text())
    assert result["link"] == "5 Mbit/s, 10 ms"
    # Half of it passes each of two links.
    assert result["seconds"] >= result["steps"] * 0.01 + result["bytes_sent"] / 2 / 0.625e6 * 0.9
    assert not (folder / "partly" / "slowmo.json").exists()
    report = (folder / "partly" / "partly.html").read_text()
    assert "2 workers over simulated links of 5 Mbit/s, 10 ms" in report
    assert "slowmo failed: rank 0: ValueError" in report


@pytest.mark.parametrize(("details", "told"), [(("", ""), ""), (("a", ""), "a"), (("a", "b"), "a\nb")])
def test_where_the_failures_happened_is_told_of_those_of_which_it_is_known(details, told):
    failed = {str(number): RunFailed("failed", one) for number, one in enumerate(details)}
    assert summary(failed, 3).details == told


def test_a_link_that_is_wrong_or_has_no_other_end(folder):
    arguments = ["compare", str(folder / "quick.yaml"), "--algorithms", "bsp"]
    done = CliRunner().invoke(app, [*arguments, "--link", "fast"])
    assert done.exit_code == 2
    assert "a rate is a number of kbit, mbit, gbit, such as \"100mbit\"; got 'fast'" in done.stderr
    done = CliRunner().invoke(app, [*arguments, "--link", "100mbit", "--workers", "1"])
    assert done.exit_code == 2
    assert "workers is 1; start more" in done.stderr


@pytest.mark.parametrize("command", [["train"], ["compare", "--algorithms", "bsp"]])
def test_an_output_that_takes_no_files_is_refused_before_training(folder, command):
    taken = str(folder / "quick.yaml")
    name, *options = command
    for output in (taken, f"{taken}/below"):
        done = CliRunner().invoke(app, [name, taken, *options, "--set", f"output={output}"])
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"output: cannot write to the folder {output}: " in done.stderr


def test_own_algorithm_keeps_its_parameters_and_takes_the_sets(folder):
    own, bare = (
        job.load().algorithm
        for job in make_jobs(folder / "quick.yaml", ["local_sgd", "slowmo"], None, ["algorithm.steps=5"])
    )
    assert "every(steps=5)" in repr(own)
    assert "every(steps=48)" in repr(bare)
    kept = make_jobs(folder / "quick.yaml", ["local_sgd"], 3, [])[0].load()
    assert "every(steps=4)" in repr(kept.algorithm)
    assert kept.workers == 3


def test_who_mistypes_a_composed_algorithm_is_told_its_name(folder):
    (folder / "mine.yaml").write_text(
        "algorithm: {name: mine, rules: [{payload: gradients, exchange: all_reduce}]}\n"
    )
    with pytest.raises(ConfigError, match="unknown algorithm 'mne'") as caught:
        make_jobs(folder / "mine.yaml", ["bsp", "mne"], None, [])
    assert describe(caught.value).endswith("; the configuration's own is mine")


def test_algorithms_of_a_named_run_have_logs_of_their_own(folder):
    names, named = ["local_sgd", "bsp"], ["metrics={run: mine}"]
    jobs = make_jobs(folder / "quick.yaml", names, None, named)
    assert [job.load().metrics.run for job in jobs] == ["mine-local_sgd", "mine-bsp"]
    jobs = make_jobs(folder / "quick.yaml", names, None, ["metrics={}"])
    assert [job.load().metrics.run for job in jobs] == [None, None]


def test_what_an_algorithm_requires_is_as_in_its_example_and_told(folder, capsys):
    made = make_jobs(folder / "quick.yaml", ["bsp", "post_local_sgd"], None, [])
    assert [job.load().algorithm.name for job in made] == ["bsp", "post_local_sgd"]
    assert made[1].load().algorithm.rules[0].active == (0, 100)
    told = "post_local_sgd: after_steps=100, as in the example; for another, make it the configuration's own"
    assert capsys.readouterr().err == f"relaxcomm: {told} algorithm\n"
    on = ["--parameters", "1000", "--step-seconds", "0.1", "--links", "1gbit", "--algorithms"]
    done = CliRunner().invoke(app, ["plan", str(folder / "quick.yaml"), *on, "bsp,post_local_sgd"])
    assert (done.exit_code, done.stderr) == (0, f"relaxcomm: {told} algorithm\n")
    own = ["algorithm={name: post_local_sgd, after_steps: 3}"]
    done = CliRunner().invoke(app, ["plan", str(folder / "quick.yaml"), *on, "post_local_sgd", "--set", *own])
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.fixture
def planned(tmp_path):
    """A configuration that goes on with another algorithm."""
    path = tmp_path / "planned.yaml"
    path.write_text("algorithm: bsp\nphases: [{after_steps: 2, algorithm: local_sgd}]\n")
    return path


def test_phases_are_of_the_configured_algorithm_alone(planned, capsys):
    own, other = (job.load() for job in make_jobs(planned, ["bsp", "diloco"], None, []))
    assert [one.name for one in own.algorithms] == ["bsp", "local_sgd"]
    assert [one.name for one in other.algorithms] == ["diloco"]
    told = "relaxcomm: phases follow bsp alone; other algorithms are trained from the first step on\n"
    assert capsys.readouterr().err == told
    make_jobs(planned, ["bsp"], None, [])
    assert not capsys.readouterr().err, "nothing is left out"


def test_training_with_another_algorithm_leaves_out_phases_but_those_that_are_set(planned, capsys):
    configured = read_job(planned)
    for sets, names in (([], ["diloco"]), (["phases=[{after_steps: 3, algorithm: bsp}]"], ["diloco", "bsp"])):
        job = configured.override(sets=sets, algorithm="diloco")
        assert [one.name for one in job.load().algorithms] == names
        tell_of_phases(configured, [job])
        assert bool(capsys.readouterr().err) == (not sets)
    assert len(configured.override(algorithm="bsp").load().algorithms) == 2


def test_what_the_configured_algorithm_cannot_use_is_no_matter_where_others_are_compared(folder):
    made = make_jobs(folder / "quick.yaml", ["d_psgd", "sgp"], None, ["topology=ring"])
    assert [job.load().algorithm.name for job in made] == ["d_psgd", "sgp"]
    with pytest.raises(CompositionError, match="cannot use topology ring"):
        make_jobs(folder / "quick.yaml", ["local_sgd"], None, ["topology=ring"])[0].load()


@pytest.mark.parametrize(
    ("names", "sets", "message"),
    [
        (["bsp"], ["algorithm.steps=5"], "speaks of the configuration's local_sgd"),
        (["bsp"], ["algorithm=slowmo"], "takes its algorithms from --algorithms"),
    ],
)
def test_sets_that_speak_of_no_compared_algorithm_are_refused(folder, names, sets, message):
    with pytest.raises(ConfigError, match=message):
        make_jobs(folder / "quick.yaml", names, None, sets)


@pytest.mark.parametrize("text", ["", " , ", "bsp,bsp"])
def test_lists_of_names_that_are_refused(text):
    with pytest.raises(ConfigError, match="write different names"):
        split_names(text)


def test_algorithms_prints_one_plain_line_each():
    shown = CliRunner().invoke(app, ["algorithms"])
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0
    assert [line.split()[0] for line in lines] == sorted(registry.algorithms())
    local = next(line for line in lines if line.startswith("local_sgd "))
    assert "steps=16" in local
    assert registry.algorithms()["local_sgd"].summary in local


@pytest.mark.parametrize("columns", [80, 120])
def test_algorithms_are_told_in_whole_words_on_a_terminal(columns):
    width = {"COLUMNS": str(columns), "FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}
    shown = CliRunner().invoke(app, ["algorithms"], env=width)
    words = " ".join(re.sub(r"\x1b\[[\d;]*m", "", shown.stdout).split())
    for entry in registry.algorithms().values():
        assert f"{entry.name} {entry.summary} {entry.parameters}" in words
    assert max(map(len, shown.stdout.splitlines())) > 60, "it is the table"


def test_cells_show_units():
    header, rows = cells([result("bsp", 4_000_000), result("none", 0)])
    assert header[:3] == ["algorithm", "accuracy", "time"]
    assert rows[0] == ["bsp", "0.9800", "1.50 s", "10", "50%", "4 MB", "1.0x"]
    assert rows[1][-1] == "-", "there is no ratio to nothing"


def test_the_title_names_the_gpu_that_all_trained_on():
    assert title(result("bsp", 1)) == "digits on 2 workers"
    assert title(result("bsp", 1, device="NVIDIA H200")) == "digits on 2 workers, NVIDIA H200"


def test_a_measure_that_falls_says_so():
    falling = replace(result("bsp", 4_000_000), metric="bits per character", higher_is_better=False)
    assert cells([falling])[0][1] == "bits per character (lower is better)"


def test_plot_of_runs_that_sent_nothing(tmp_path):
    assert plot([result("bsp", 0)], tmp_path / "a" / "b.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("text", "pair"),
    [("a.b=3", ("a.b", 3)), ("a=x=y", ("a", "x=y")), ("a=", ("a", None)), ("t=[1, 2]", ("t", [1, 2]))],
)
def test_parse_set(text, pair):
    assert parse_set(text) == pair


@pytest.mark.parametrize("text", ["a", "=3", "a..b=3", ".=1", "a={"])
def test_parse_set_refuses(text):
    with pytest.raises(ConfigError, match="--set"):
        parse_set(text)

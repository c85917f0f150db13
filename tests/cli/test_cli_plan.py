"""`relaxcomm plan`: what is predicted, and what is refused."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from relaxcomm.cli import plan_options, rows
from relaxcomm.cli.app import app
from relaxcomm.cli.plan_arguments import parameter_count
from relaxcomm.planner.scenario import StepTimes

ON = ("--step-seconds", "0.1", "--links", "100mbit")


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("algorithm: {name: local_sgd, steps: 8}\nworkers: 4\n")
    return "job.yaml"


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "40"})
    return done.exit_code, done.stdout, done.stderr


def test_plain_lines_off_a_terminal(config):
    code, out, err = run(config, *ON, "--parameters", "1e6")
    assert (code, err) == (0, "")
    header, row = (line.split() for line in out.splitlines())
    assert header[0] == "algorithm"
    # A ring of 4 sends 6 MB in 0.48 s, every 8 steps of 0.1 s.
    assert row[:10] == ["local_sgd", "4", "160", "ms", "60", "ms", "0", "s", "750", "kB"]
    assert row[12:15] == ["62.5%", "4", "MB"]


def test_what_is_said_of_several_algorithms_is_said_once(config):
    arguments = (*ON, "--parameters", "1e6", "--workers", "2")
    _, out, _ = run(config, *arguments, "--algorithms", "bsp,topk_sgd,dgc,bytegrad")
    said = [line.partition(": ")[0] for line in out.splitlines() if "compression loses" in line]
    assert said == ["topk_sgd, dgc, 2 workers", "bytegrad, 2 workers"]


@pytest.mark.parametrize("text", ["0", "0.5", "-1e6", "many", "nan", "inf"])
def test_sizes_of_a_model_that_are_refused(text):
    with pytest.raises(typer.BadParameter, match="is no whole number of 1 or more; write 1000000, or 1e6"):
        parameter_count(text)


def test_json_over_several_numbers_of_workers(config):
    code, out, _ = run(
        config, *ON, "--parameters", "1000000", "--workers", "2,8", "--algorithms", "bsp,diloco", "--json"
    )
    said = json.loads(out)
    assert code == 0
    assert said["parameters"] == 1_000_000
    rows = [(one["algorithm"], one["workers"]) for one in said["forecasts"]]
    assert rows == [("bsp", 2), ("bsp", 8), ("diloco", 2), ("diloco", 8)]
    assert said["forecasts"][0]["step_seconds"] == pytest.approx(0.1 + 0.32)
    assert said["forecasts"][3]["bandwidths"]["0.5"] > 0


def test_every_phase_has_a_row_of_its_own(config, tmp_path):
    later = "[{after_steps: 100, algorithm: {name: local_sgd, steps: 64}}]"
    arguments = (*ON, "--parameters", "10000", "--set", f"phases={later}", "--json")
    code, out, _ = run(config, *arguments)
    rows = {one["algorithm"]: one["sent_bytes"] for one in json.loads(out)["forecasts"]}
    assert code == 0
    every_step = pytest.approx(1.5 * 40_000)
    assert {name: 8 * sent for name, sent in rows.items()}["local_sgd"] == every_step
    assert 64 * rows["local_sgd (after 100 steps)"] == every_step
    code, out, _ = run(config, *arguments, "--algorithms", "bsp,local_sgd")
    _, own = json.loads(out)["forecasts"]
    assert (own["algorithm"], 8 * own["sent_bytes"]) == ("local_sgd", every_step)


def test_all_algorithms_and_those_that_cannot_run(config):
    code, out, _ = run(config, *ON, "--parameters", "10000", "--algorithms", "all", "--json")
    said = json.loads(out)
    assert code == 0
    assert {"bsp", "powersgd", "auto", "local_sgd"} <= {one["algorithm"] for one in said["forecasts"]}
    steps = [one["step_seconds"] for one in said["forecasts"]]
    assert steps == sorted(steps), "the fastest first"
    assert "groups of ranks" in said["not_possible"]["hierarchical_local_sgd, 4 workers"]
    local = next(one for one in said["forecasts"] if one["algorithm"] == "local_sgd")
    assert local["sent_bytes"] == pytest.approx(1.5 * 40_000 / 8), "the configuration's own parameters"


def test_a_graph_that_the_configured_algorithm_cannot_use_leaves_others_their_rows(config):
    asked = (*ON, "--parameters", "10000", "--set", "topology=ring", "--json", "--algorithms")
    for names, failed in (("d_psgd", []), ("d_psgd,local_sgd", ["local_sgd, 4 workers"])):
        code, out, err = run(config, *asked, names)
        assert (code, err) == (0, "")
        assert [one["algorithm"] for one in json.loads(out)["forecasts"]] == ["d_psgd"]
        assert list(json.loads(out)["not_possible"]) == failed


def test_links_from_a_graph(config, tmp_path):
    edges = '0 1 {"bandwidth": 1e9}\n1 2 {"bandwidth": 1e6, "latency": 0.01}\n2 3 {"bandwidth": 1e9}\n'
    (tmp_path / "sites.edgelist").write_text(edges)
    arguments = ("--step-seconds", "0.1", "--topology", "sites.edgelist", "--parameters", "1000", "--json")
    code, out, _ = run(config, *arguments, "--algorithms", "bsp")
    said = json.loads(out)
    assert code == 0
    assert said["slowest_link"] == {"bytes_per_second": 1e6, "latency_seconds": 0.01}
    assert said["forecasts"][0]["step_seconds"] == pytest.approx(0.1 + 6 * 0.01 + 0.006)
    code, _, err = run(config, *arguments, "--workers", "8")
    assert (code, "4 nodes" in err) == (2, True)


def test_measured_on_this_machine(config):
    code, out, err = run(config, "--measure", "--links", "1gbit", "--set", "task=digits", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert 0 < said["step_times"]["seconds"] < 5
    assert said["parameters"] > 1000


def test_a_measured_step_is_told_with_its_jitter_which_can_be_left_out(config, monkeypatch):
    monkeypatch.setattr(plan_options, "measure_steps", lambda *_: StepTimes(0.0286, jitter_seconds=0.009))
    measured = ("--measure", "--links", "1gbit", "--set", "task=digits")
    here = "\nstep alone  28.6 ms{}, measured on this machine{}\n"
    for _ in range(2):  # off a terminal and on one
        assert here.format(" ± 9 ms", "; --jitter 0 plans without its jitter") in run(config, *measured)[1]
        assert here.format("", "") in run(config, *measured, "--jitter", "0")[1]
        wide = partial(Console, force_terminal=True, color_system=None, width=200)
        monkeypatch.setattr(rows, "Console", wide)
    told = ("--step-seconds", "0.0286", *measured[1:], "--jitter", "0.001")
    out = run(config, *told)[1]
    assert ", 28.6 ms ± 1 ms a step alone" in out
    assert "measured" not in out


def test_a_utilisation_that_nothing_comes_to_has_no_column(config):
    at = (config, "--parameters", "1e6", "--step-seconds", "0.1", "--links", "100mbit,5ms")
    code, out, _ = run(*at)
    header, _, never = out.splitlines()
    assert (code, re.findall("for ..%", header)) == (0, ["for 50%", "for 90%"])
    assert never.startswith("for 99%  never, at any bandwidth: latency")
    assert json.loads(run(*at, "--json")[1])["forecasts"][0]["bandwidths"]["0.99"] is None
    out = run(*at, "--algorithms", "local_sgd,bsp")[1]
    assert "for 90%" in out.splitlines()[0]
    assert "never" in out.splitlines()[2], "another comes to it"


TASK = ("--set", "task={digits: {epochs: 2, hidden: [32]}}")
SITES = ("--step-seconds", "0.05", "--links", "1gbit", "--sites", "2,1mbit,5ms")


def test_training_on_simulated_workers_says_who_is_first_at_a_quality(config, tmp_path):
    """Between the sites gradients take long: the one with few exchanges is first."""
    pytest.importorskip("sklearn")
    arguments = (*SITES, *TASK, "--algorithms", "bsp,local_sgd", "--train", "--seeds", "2", "--target", "0.5")
    code, out, _ = run(config, *arguments, "--json")
    assert code == 0
    first, second = json.loads(out)["training"]
    assert (first["algorithm"], second["algorithm"], first["workers"]) == ("bsp", "local_sgd", 4)
    assert second["seconds_to_target"]["high"] < first["seconds_to_target"]["low"]
    assert first["seconds"]["median"] > 2 * second["seconds"]["median"]
    assert [one["seed"] for one in first["runs"]] == [0, 1]
    assert first["runs"][0]["history"] != first["runs"][1]["history"]
    code, out, _ = run(config, *arguments, "--plot", "train.svg", "--set", "workers=2")
    assert code == 0
    assert "2 workers: local_sgd is the first at accuracy 0.5, after" in out
    assert "of 2 seeds: they hold the median of all seeds with 50%" in out
    assert "<svg" in (tmp_path / "train.svg").read_text()


def test_sites_are_the_groups_of_algorithms_that_need_some(config):
    pytest.importorskip("sklearn")
    arguments = (*SITES, *TASK, "--algorithms", "hierarchical_local_sgd", "--workers", "4,6")
    code, out, err = run(config, *arguments, "--train", "--seeds", "2")
    assert code == 0, err
    assert "6 workers: its groups are those between which links are slow: [3, 3]" in out
    assert out.count("has the best accuracy") == 2


@pytest.mark.parametrize("workers", ["1", "4", "2,4"])  # alone, all take the same time but for rounding
def test_a_picture(config, workers, tmp_path):
    pytest.importorskip("matplotlib")
    on = (*ON, "--step-seconds", "0.01", "--parameters", "1000", "--workers", workers)
    code, out, err = run(config, *on, "--plot", "plan.svg")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "plot: plan.svg"
    drawn = re.findall("<!-- (.*) -->", (tmp_path / "plan.svg").read_text())
    if workers == "2,4":
        assert drawn[: drawn.index("workers")] == ["2", "4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--links", "1gbit", "--parameters", "9"), "needs the time of a step"),
        (("--step-seconds", "1", "--parameters", "9"), "needs the network"),
        (ON, "needs a model"),
        ((*ON, "--set", "task=digit"), "job.yaml: unknown task 'digit'; did you mean 'digits'"),
        ((*ON, "--parameters", "9", "--workers", "4,x"), "--workers '4,x' is not allowed"),
        ((*ON, "--parameters", "9", "--algorithms", "nope"), "; the configuration's own is local_sgd"),
        ((*ON, "--parameters", "9", "--stragglers", "3"), "--stragglers is SHARE,TIMES"),
        ((*ON, "--parameters", "9", "--stragglers", "2,3"), "1 times as long or more; got 2,3"),
        ((*ON, "--parameters", "9", "--jitter", "-1"), "--jitter is a number of seconds, 0 or more; got -1"),
        ((*ON, "--parameters", "9", "--step-seconds", "0"), "--step-seconds is a number of seconds, above 0"),
        ((*ON, "--parameters", "9", "--workers", "0"), "'0' is not allowed; write numbers of 1 or more"),
        ((*ON, "--parameters", "9", "--plot", "a.bmp"), "ends in .png"),
        ((*ON, "--parameters", "9", "--algorithms", "hierarchical_local_sgd"), "no algorithm can run so"),
        (("--measure", "--links", "1gbit", "--parameters", "9"), "trains the configuration's task"),
        ((*ON, "--parameters", "9", "--target", "0.9"), "--target is of runs that train; add --train"),
        ((*ON, "--parameters", "9", "--train"), "leave --parameters out"),
        ((*ON, "--parameters", "9", "--sites", "1,1gbit"), "--sites is COUNT,RATE[,LATENCY]"),
        ((*ON, "--parameters", "9", "--sites", "8,1gbit"), "8 sites need 8 workers or more, and there are 4"),
        ((*ON, "--parameters", "9", "--sites", "2,1gbit,5ms,9kb"), "what workers share has no burst"),
        ((*ON[:3], "1gbit,1ms,9kb", "--parameters", "9", "--sites", "2,1gbit"), "workers share have none"),
        (("--measure", *ON, "--parameters", "9"), "--step-seconds or --measure, not both"),
    ],
)
def test_bad_input_is_told_in_one_line(config, arguments, words):
    code, _, err = run(config, *arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "needs the time of a step"),
        (("--step-seconds", "1"), "needs the network"),
        ((*ON, "--algorithms", "nope"), "unknown algorithm 'nope'"),
        ((*ON, "--step-seconds", "0"), "--step-seconds is a number of seconds"),
        ((*ON, "--jitter", "-1"), "--jitter is a number of seconds"),
        ((*ON, "--stragglers", "3"), "--stragglers is SHARE,TIMES"),
        ((*ON, "--workers", "4,x"), "--workers '4,x' is not allowed"),
        ((*ON, "--failures", "3600"), "--failures is LIFE,AWAY"),
        ((*ON, "--coding", "0"), "Invalid value for '--coding'"),
    ],
)
def test_what_needs_no_task_is_refused_before_it_is_built(config, arguments, words, tmp_path):
    (tmp_path / "costly.py").write_text("def make(seed):\n    raise RuntimeError('was built')\n")
    asked = ("--set", "task=costly:make")
    assert "was built" in run(config, *asked, *ON)[2]
    code, _, err = run(config, *asked, *arguments)
    assert code == 2
    assert words in err


def test_workers_that_die(config):
    ask = (*ON, "--parameters", "10000", "--failures", "3600,60")
    code, _, err = run(config, *ask)
    assert code != 0
    assert "write checkpoint: {path: saved, every_seconds: 600}" in err
    code, out, _ = run(config, *ask, "--set", "membership.elastic=true")
    header, row = (line.split() for line in out.splitlines())
    assert (code, header[-1]) == (0, "goodput")
    assert 97 < float(row[-1].removesuffix("%")) < 99
    again = run(config, *ask, "--set", "checkpoint={path: a, every_steps: 100}", "--json")
    (found,) = json.loads(again[1])["forecasts"]
    assert found["goodput"] == pytest.approx(found["useful_share"] * found["utilisation"])
    code, _, err = run(config, *ON, "--parameters", "10000", "--failures", "3600")
    assert code != 0
    assert "--failures is LIFE,AWAY in seconds, such as 86400,60; got '3600'" in err

"""Bad input is found before any worker starts: exit code 2 and one readable block."""

import pytest
import typer
from typer.testing import CliRunner

from relaxcomm.cli.app import app
from relaxcomm.cli.options import written

CASES = {
    "unknown_key": (["quick.yaml", "--set", "worker=2"], "unknown key 'worker'; did you mean 'workers'"),
    "wrong_type": (["quick.yaml", "--set", "workers=two"], "workers: 'two' is not allowed"),
    "unknown_algorithm": (["quick.yaml", "--algorithm", "local_sdg"], "did you mean 'local_sgd'"),
    "algorithm_parameter": (["quick.yaml", "--set", "algorithm.step=3"], "no parameter 'step'"),
    "set_without_value": (["quick.yaml", "--set", "seed"], "--set 'seed' is not allowed; write KEY=VALUE"),
    "set_not_yaml": (
        ["quick.yaml", "--set", "task={"],
        "--set 'task={': not YAML: line 1, column 2: expected",
    ),
    "missing_file": (["nowhere.yaml"], "nowhere.yaml: No such file or directory; give the path"),
    "task_option": (
        ["quick.yaml", "--set", "task.digits.lr=1"],
        "quick.yaml: task 'digits' has no parameter 'lr'",
    ),
    "topology_of_the_wrong_kind": (["quick.yaml", "--set", "topology=ring"], "it can use complete"),
    "topology_of_the_wrong_size": (
        ["quick.yaml", "--algorithm", "d_psgd", "--workers", "3", "--set", "topology=hypercube"],
        "hypercube needs a power of two, got 3 workers",
    ),
    "topology_of_a_fixed_size": (
        [
            *("quick.yaml", "--algorithm", "d_psgd", "--workers", "4"),
            *("--set", "topology=hypercube", "--set", "membership.elastic=true"),
        ],
        "membership.elastic: 3 of the 4 workers could not go on: hypercube needs a power of two",
    ),
    "quorum": (
        ["quick.yaml", "--workers", "2", "--set", "membership={elastic: true, quorum: 9}"],
        "quick.yaml: membership.quorum is 9, but this run has 2 workers",
    ),
    "unknown_task": (
        ["quick.yaml", "--set", "task=mine.job:mak"],
        "quick.yaml: task 'mine.job:mak': mine.job has no function 'mak'; did you mean 'make'",
    ),
}
REAL = "unknown_task"  # which imports the user's module


def test_bad_input_ends_the_process(start):
    result = start("train", *CASES[REAL][0]).finish()
    assert_refused(REAL, result.code, result.out, result.err)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {REAL}))
def test_bad_input_is_refused(folder, name, monkeypatch):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, ["train", *CASES[name][0]])
    assert_refused(name, result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize("command", ["train", "show"])
def test_what_is_wrong_with_the_number_of_workers_is_told_with_its_line(tmp_path, command):
    path = tmp_path / "job.yaml"
    path.write_text("task: digits\nalgorithm: bsp\nworkers: 2\nmembership: {elastic: true,\n  quorum: 9}\n")
    result = CliRunner().invoke(app, [command, str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}: line 5: membership.quorum is 9" in result.stderr


@pytest.mark.parametrize("name", ["list", "ls"])
def test_who_asks_for_a_list_is_shown_its_command(name):
    result = CliRunner().invoke(app, [name])
    assert result.exit_code == 2
    assert "Did you mean 'algorithms'?" in result.stderr


def test_no_description_of_a_command_is_cut(monkeypatch):
    monkeypatch.setattr(app, "rich_markup_mode", None)  # as where no terminal is
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout.partition("Commands:")[2]
    assert "List the algorithms" in shown
    assert "..." not in shown


def test_a_number_with_a_comma_is_told_its_point():
    with pytest.raises(
        typer.BadParameter, match=r"^'0,5' is not allowed: write a number, with a point: 0\.5$"
    ):
        written(float)("0,5")


def assert_refused(name, code, out, err):
    assert code == 2
    assert out == ""
    assert err.startswith("relaxcomm: error: ")
    assert CASES[name][1] in err
    assert len(err.splitlines()) == 1

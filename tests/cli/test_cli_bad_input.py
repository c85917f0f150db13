"""Bad input is found before any worker starts: exit code 2 and one readable block."""

import pytest

CASES = {
    "unknown_key": (["quick.yaml", "--set", "worker=2"], "unknown key 'worker'; did you mean 'workers'"),
    "wrong_type": (["quick.yaml", "--set", "workers=two"], "workers: 'two' is not allowed"),
    "unknown_algorithm": (["quick.yaml", "--algorithm", "local_sdg"], "did you mean 'local_sgd'"),
    "algorithm_parameter": (["quick.yaml", "--set", "algorithm.step=3"], "no parameter 'step'"),
    "set_without_value": (["quick.yaml", "--set", "seed"], "--set 'seed' is not allowed; write KEY=VALUE"),
    "set_not_yaml": (["quick.yaml", "--set", "task={"], "--set 'task={': the value is not YAML"),
    "missing_file": (["nowhere.yaml"], "nowhere.yaml: No such file"),
    "task_option": (["quick.yaml", "--set", "task.digits.lr=1"], "no parameter 'lr'; it takes:"),
    "topology_of_the_wrong_kind": (["quick.yaml", "--set", "topology=ring"], "it can use complete"),
    "topology_of_the_wrong_size": (
        ["quick.yaml", "--algorithm", "d_psgd", "--workers", "3", "--set", "topology=hypercube"],
        "hypercube needs a power of two, got 3 workers",
    ),
    "unknown_task": (["quick.yaml", "--set", "task=mine.job:mak"], "no function 'mak'; did you mean 'make'"),
}


@pytest.fixture(scope="module")
def finished(start):
    """All cases, run side by side."""
    running = {name: start("train", *arguments) for name, (arguments, _) in CASES.items()}
    return {name: process.finish() for name, process in running.items()}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused(finished, name):
    result = finished[name]
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("relaxcomm: error: ")
    assert CASES[name][1] in result.err
    assert len(result.err.splitlines()) == 1

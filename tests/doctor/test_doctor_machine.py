"""What the doctor says of versions, cores and the environment."""

import os
import warnings

import pytest

from relaxcomm.config import registry
from relaxcomm.doctor import machine

LAUNCHER = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in (*LAUNCHER, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))


def found(name: str, workers: int = 2) -> list[tuple[str, str, str]]:
    return [(one.level, one.text, one.remedy) for one in machine.findings(workers) if one.name == name]


def test_versions():
    import torch

    assert found("torch") == [("ok", torch.__version__, "")]
    assert len(found("relaxcomm")) == len(found("python")) == 1
    ((level, text, _),) = found("backends")
    assert (level, text.split(",")[0]) == ("ok", "gloo")


@pytest.mark.parametrize(
    ("workers", "threads", "level", "says"),
    [
        (4, None, "ok", ""),
        (5, None, "warning", "at most 4"),
        (2, "2", "ok", ""),
        (2, "3", "warning", "OMP_NUM_THREADS=2"),
        (3, "4", "warning", "OMP_NUM_THREADS=1"),
    ],
)
def test_cores(workers, threads, level, says, monkeypatch):
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    ((got, _, remedy),) = found("cores", workers)
    assert got == level
    assert says in remedy


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"MASTER_PORT": None}, "missing: MASTER_PORT"),
        ({"WORLD_SIZE": None, "MASTER_ADDR": None}, "missing: WORLD_SIZE, MASTER_ADDR"),
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE is 2"),
        ({"RANK": "first"}, "RANK is 'first'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT is '99999'"),
    ],
)
def test_environment(changes, says, monkeypatch):
    for name, value in {**LAUNCHER, **changes}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    shown, *problems = found("environment")
    assert "NCCL_DEBUG=INFO" in shown[1]
    assert ("RANK=" in shown[1]) == ("RANK" not in changes or changes["RANK"] is not None)
    assert [level for level, _, _ in problems] == ([] if says is None else ["problem"])
    assert all(says in text for _, text, _ in problems)


def test_a_plug_in_that_is_left_out_is_a_warning(monkeypatch):
    def algorithms():
        warnings.warn("plug-in 'mine' is left out: no module", stacklevel=1)
        return {}

    monkeypatch.setattr(registry, "algorithms", algorithms)
    assert [level for level, _, _ in found("plug-ins")] == ["ok", "warning"]
    assert found("plug-ins")[0][1].startswith("0 algorithms, ")

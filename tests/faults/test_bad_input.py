"""Whatever comes from outside is taken, or refused with one short error of our own, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from relaxcomm.cli.job import parse_set
from relaxcomm.config import load
from relaxcomm.errors import RelaxcommError
from relaxcomm.primitives import file
from relaxcomm.system import environment
from relaxcomm.tasks.task_loader import find_task
from tests.faults import mutations

CASES = 10_000
SAMPLE = 30
LONGEST_CHARACTERS = 2_000
LONGEST_SECONDS = 5.0


def _load_file(data: bytes) -> None:
    with open("mutant.yaml", "wb") as written:
        written.write(data)
    load("mutant.yaml")


def _load_assignment(text: str) -> None:
    key, value = parse_set(text)
    load({"algorithm": "bsp"}, {key: value})


def _load_mapping(entry: tuple[str, str]) -> None:
    key, value = entry
    load({"algorithm": "bsp", key: mutations.VALUES[value]()})


def _load_graph(ending: str) -> Callable[[bytes], None]:
    def go(data: bytes) -> None:
        with open(f"mutant.{ending}", "wb") as written:
            written.write(data)
        file(path=f"mutant.{ending}").check(3)

    return go


def _launch(changes: dict[str, str | None]) -> None:
    variables = {**mutations.LAUNCH, **changes}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        here = environment.launched()
        assert 0 <= here.rank < here.world_size
        if here.world_size > 1:
            environment.check_rendezvous()


PROPERTIES: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "configuration": (mutations.yaml_files, _load_file),
    "assignment": (mutations.assignments, _load_assignment),
    "mapping": (mutations.mappings, _load_mapping),
    "graphml": (mutations.graphml_files, _load_graph("graphml")),
    "edge_list": (mutations.edge_list_files, _load_graph("edgelist")),
    "task": (mutations.task_names, find_task),
    "environment": (mutations.environments, _launch),
}


def _hold(name: str, cases: int, *, derandomize: bool) -> None:
    strategy, go = PROPERTIES[name]

    @settings(
        max_examples=cases,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def holds(made: Any) -> None:
        began, message = time.process_time(), "taken"
        try:
            go(made)
        except RelaxcommError as error:
            message = str(error)
        assert 0 < len(message) <= LONGEST_CHARACTERS
        assert time.process_time() - began < LONGEST_SECONDS

    holds()


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_fixed_sample_of_bad_input_is_refused(name):
    _hold(name, SAMPLE, derandomize=True)


@pytest.mark.faults
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", PROPERTIES)
def test_bad_input_is_refused(name):
    _hold(name, -(-CASES // len(PROPERTIES)), derandomize=False)

"""Whatever comes from outside is taken, or refused with one short error of our own, and soon."""

from __future__ import annotations

import io
import sys
import time
import types
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from relaxcomm.cli.job import parse_set
from relaxcomm.cli.ranks_view import History, sparkline, table
from relaxcomm.config import discovery, load, registry
from relaxcomm.errors import ConfigError, PluginError, RelaxcommError
from relaxcomm.monitoring import scraping
from relaxcomm.monitoring.scraping import Reader
from relaxcomm.primitives import file
from relaxcomm.system import environment
from relaxcomm.tasks.task_loader import find_task
from tests.faults import mutations
from tests.faults.served import Liar, ask, exporter

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


def _show(data: bytes) -> None:
    history = History()
    with suppress(ValueError):
        for seconds in (1.0, 2.0):
            rows = history.rows([0], {0: scraping.parse(0, data.decode(), seconds)})
        names = sorted({name for row in rows for name in row.evaluations})
        drawn = [*table(rows, names)[1][0], *names, *(sparkline(row.losses) for row in rows)]
        assert all(text.isprintable() for text in drawn)


def _discover(data: bytes) -> None:
    with suppress(ValueError):
        for rank, address in scraping._addresses(data.decode()).items():
            assert rank >= 0
            assert address.startswith("http://")
            assert address.count("/") == 2
            assert "@" not in address


def _request(data: bytes) -> None:
    port = SERVED["exporter"].port
    with redirect_stderr(io.StringIO()) as complaints:
        ask(port, data)
        assert b"relaxcomm_loss 0.5" in ask(port, b"GET /metrics HTTP/1.0\r\n\r\n")
    assert complaints.getvalue() == ""


def _answer(data: bytes) -> None:
    SERVED["liar"].answer = data
    reader = Reader(f"127.0.0.1:{SERVED['liar'].port}")
    with suppress(OSError, ValueError):
        reader.ranks()
    reader.read({0: reader.url}, 0.0)


def _reader(url: str) -> None:
    assert Reader(url).url.partition("://")[0] in ("http", "https")


def _plug_in(entry: tuple[str, str, str, object]) -> None:
    name, value, target, protocol = entry
    module = types.ModuleType("foreign")
    module.__dict__.update(thing=mutations.TARGETS[target], RELAXCOMM_PROTOCOL=protocol)
    found = discovery.entry_points
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "foreign", module)
        for group in (discovery.ALGORITHMS, discovery.PRIMITIVES):
            foreign = EntryPoint(name, value, group)
            patch.setattr(
                discovery,
                "entry_points",
                lambda group, one=foreign: [*found(group=group), *([one] if one.group == group else [])],
            )
            registry.algorithms.cache_clear()
            registry.primitives.cache_clear()
            registry.primitives()
            assert load({"algorithm": "bsp"}).algorithm.name == "bsp"
            with suppress(ConfigError, PluginError):
                load({"algorithm": name})


PROPERTIES: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "configuration": (mutations.yaml_files, _load_file),
    "assignment": (mutations.assignments, _load_assignment),
    "mapping": (mutations.mappings, _load_mapping),
    "graphml": (mutations.graphml_files, _load_graph("graphml")),
    "edge_list": (mutations.edge_list_files, _load_graph("edgelist")),
    "task": (mutations.task_names, find_task),
    "environment": (mutations.environments, _launch),
    "metrics": (mutations.shown, _show),
    "discovered": (mutations.discovered, _discover),
    "request": (mutations.requests, _request),
    "answer": (mutations.answers, _answer),
    "url": (mutations.urls, _reader),
    "plug_in": (mutations.entry_points, _plug_in),
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


SERVED: dict[str, Any] = {}
"""An exporter, and a server that answers what it is told to, for all tests of this file."""


@pytest.fixture(autouse=True, scope="module")
def _served():
    with exporter() as asked:
        SERVED.update(exporter=asked, liar=Liar())
        yield
        SERVED["liar"].close()
    registry.algorithms.cache_clear()
    registry.primitives.cache_clear()


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

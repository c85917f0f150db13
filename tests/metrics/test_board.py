"""Every expression of the board and of the rules, asked of a real Prometheus, against the run logs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.metrics.harness import read_log
from tests.metrics.server import DASHBOARDS, job, prometheus, until

WINDOW_SECONDS = 12
BOARD = DASHBOARDS / "grafana/boards/relaxcomm.json"
ALGORITHM = {
    "rules": [
        {
            "trigger": {
                "relative_gradient_change": {"threshold": 0.001, "window_steps": 5, "smoothing": 0.9}
            },
            "payload": "deltas",
            "compressor": {"error_feedback": {"top_k": {"density": 0.1}}},
            "exchange": "all_gather",
        }
    ],
    "name": "everything",
}


@dataclass
class Log:
    """What one rank wrote: what its counters gained within a window, and what it says in the end."""

    lines: list[dict[str, Any]]
    end: float

    @property
    def summary(self) -> dict[str, Any]:
        return self.lines[-1]["summary"]

    @property
    def window(self) -> list[dict[str, Any]]:
        return [one for one in self.lines[1:-1] if self.end - WINDOW_SECONDS <= one["time"] <= self.end]

    def gained(self, name: str) -> float:
        first, last = self.window[0], self.window[-1]
        return float(last[name] - first[name])

    def rate(self, name: str) -> float:
        return self.gained(name) / (self.window[-1]["time"] - self.window[0]["time"])

    @property
    def lssr(self) -> float:
        return 1 - self.summary["synchronisations"] / self.summary["steps"]

    @property
    def sent(self) -> float:
        return float(sum(sent for sent, _ in self.summary["bytes_moved"].values()))


Logs = list[Log]
STEP, EXPOSED, HIDDEN = "step_seconds", "exposed_communication_seconds", "hidden_communication_seconds"


def total(name: str) -> Callable[[Logs], float]:
    return lambda logs: sum(log.gained(name) for log in logs)


def each(look: Callable[[Log], float]) -> Callable[[Logs], dict[str, float]]:
    """A value a rank."""
    return lambda logs: {str(rank): look(log) for rank, log in enumerate(logs)}


def within(log: Log, name: str) -> tuple[float, float]:
    """The least and the largest value in the window."""
    values = [one[name] for one in log.window]
    return min(values), max(values)


def quantile(logs: Logs, share: float) -> tuple[float, float]:
    """The bucket in which a quantile of all steps lies."""
    bounds = [0.0, *logs[0].summary["step_bounds"]]
    counts = [sum(column) for column in zip(*(log.summary["step_counts"] for log in logs), strict=True)]
    seen = 0
    for place, count in enumerate(counts):
        seen += count
        if seen >= share * sum(counts):
            return bounds[max(0, place - 1)], bounds[min(place + 2, len(bounds) - 1)]
    raise AssertionError(counts)


def by_primitive(look: Callable[[Log, str], float]) -> Callable[[Logs], dict[str, float]]:
    return lambda logs: {
        name: sum(look(log, name) for log in logs)
        for name in logs[0].summary["bytes_moved"]
        if name not in ("broadcast", "average")  # when it begins and ends
    }


Expectation = Callable[[Logs], Any]
EXPECTED: dict[tuple[str, str], Expectation] = {
    ("Time of a step, by what it is spent on", "A"): lambda logs: (
        (total(STEP)(logs) - total(EXPOSED)(logs)) / total("step")(logs)
    ),
    ("Time of a step, by what it is spent on", "B"): lambda logs: total(EXPOSED)(logs) / total("step")(logs),
    ("Exposed communication, share of the step", "A"): each(
        lambda log: log.gained(EXPOSED) / log.gained(STEP)
    ),
    ("Communication: exposed against hidden", "A"): each(lambda log: log.rate(EXPOSED)),
    ("Communication: exposed against hidden", "B"): each(lambda log: log.rate(HIDDEN)),
    ("Time of a step, quantiles", "A"): lambda logs: quantile(logs, 0.5),
    ("Time of a step, quantiles", "B"): lambda logs: quantile(logs, 0.95),
    ("Time of an exchange, by primitive", "A"): lambda logs: {
        "all_gather": sum(log.summary["exchanges"]["all_gather"][1] for log in logs)
        / sum(log.summary["exchanges"]["all_gather"][0] for log in logs)
    },
    ("Reduction", "A"): lambda logs: (
        sum(log.summary["bytes_uncompressed"] for log in logs) / sum(log.sent for log in logs)
    ),
    ("Local steps (LSSR)", "A"): lambda logs: sum(log.lssr for log in logs) / 3,
    ("Bytes saved", "A"): lambda logs: sum(log.summary["bytes_uncompressed"] - log.sent for log in logs),
    ("Sent, against full synchronisation", "A"): each(lambda log: log.rate("bytes_sent")),
    ("Sent, against full synchronisation", "B"): each(lambda log: log.rate("bytes_uncompressed")),
    ("Sent, by primitive", "A"): by_primitive(
        lambda log, name: log.rate("bytes_sent") * log.summary["bytes_moved"][name][0] / log.sent
    ),
    ("Received", "A"): each(lambda log: log.rate("bytes_received")),
    ("Trigger against threshold", "A"): each(
        lambda log: (0.0, max(one["triggers"]["0"][0] for one in log.window))
    ),
    ("Trigger against threshold", "B"): lambda logs: 0.001,
    ("Training loss", "A"): each(lambda log: within(log, "loss")),
    ("Distance between replicas", "A"): each(
        lambda log: (
            within(log, "replica_distance")[0] / within(log, "parameter_norm")[1],
            within(log, "replica_distance")[1] / within(log, "parameter_norm")[0],
        )
    ),
    ("Residual of compression", "A"): each(lambda log: within(log, "residual_norm")),
    ("Staleness", "A"): each(lambda log: 0.0),
    ("Batch size", "A"): each(lambda log: 16.0),
    ("Samples a second", "A"): lambda logs: sum(log.rate("samples") for log in logs),
    ("Computing time of a step", "A"): each(
        lambda log: (log.gained(STEP) - log.gained(EXPOSED)) / log.gained("step")
    ),
    ("Steps a second", "A"): each(lambda log: log.rate("step")),
    ("Steps behind the foremost rank", "A"): each(lambda log: (0.0, 100.0)),
    ("Answers", "A"): each(lambda log: 1.0),
    ("Since the last synchronisation", "A"): each(lambda log: (0.0, 5.0)),
    ("The engine's own time a step", "A"): each(
        lambda log: log.gained("callback_seconds") / log.gained("step")
    ),
    ("rule", "relaxcomm:step_seconds:mean1m"): each(lambda log: log.gained(STEP) / log.gained("step")),
    ("rule", "relaxcomm:exposed_communication:ratio1m"): each(
        lambda log: log.gained(EXPOSED) / log.gained(STEP)
    ),
    ("rule", "relaxcomm:compute_seconds:mean1m"): each(
        lambda log: (log.gained(STEP) - log.gained(EXPOSED)) / log.gained("step")
    ),
    ("rule", "relaxcomm:bytes_sent:rate1m"): each(lambda log: log.rate("bytes_sent")),
    ("rule", "relaxcomm:compression:ratio"): each(lambda log: log.summary["bytes_uncompressed"] / log.sent),
    ("rule", "relaxcomm:lssr:ratio"): each(lambda log: log.lssr),
    ("rule", "relaxcomm:replica_distance:ratio"): each(
        lambda log: (
            within(log, "replica_distance")[0] / within(log, "parameter_norm")[1],
            within(log, "replica_distance")[1] / within(log, "parameter_norm")[0],
        )
    ),
}


def expressions() -> dict[tuple[str, str], str]:
    """Those of all panels and recording rules, with the board's variables filled in."""
    found = {}
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", f"{WINDOW_SECONDS}s")
            found[panel["title"], target["refId"]] = text.replace("$run", "tested").replace("$rank", ".*")
    for group in yaml.safe_load((DASHBOARDS / "prometheus/rules/relaxcomm.yml").read_text())["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                found["rule", rule["record"]] = rule["expr"].replace("[1m]", f"[{WINDOW_SECONDS}s]")
    return found


def test_every_expression_has_an_expectation():
    assert set(expressions()) == set(EXPECTED)


@pytest.mark.ranks
@pytest.mark.timeout(240)
def test_every_expression_has_the_values_of_the_run_log(tmp_path):
    with job(tmp_path / "job", ALGORITHM) as training, prometheus(tmp_path, training.port) as server:
        until(lambda: len(server.query("up == 1")) == 3, 60, "all ranks, through /sd")
        until(lambda: server.query("relaxcomm_step_seconds_count > 20"), 60, "steps")
        time.sleep(WINDOW_SECONDS + 4)
        at = time.time()
        found = {key: server.query(expression, at) for key, expression in expressions().items()}
        assert {rule["health"] for rule in server.rules()} == {"ok"}
        training.end()
        logs = [Log(read_log(training.folder, rank), at) for rank in range(3)]
    wrong = [text for key, series in found.items() for text in compare(key, series, EXPECTED[key](logs))]
    assert not wrong, "\n".join(wrong)


def compare(key: tuple[str, str], series: list[tuple[dict[str, str], float]], expected: Any) -> list[str]:
    """What is not as expected: one value for all, or one by rank or primitive; a pair is a range."""
    if not isinstance(expected, dict):
        expected = {"": expected}
    seen = {
        "" if set(expected) == {""} else labels.get("primitive", labels.get("rank", "")): value
        for labels, value in series
    }
    missing = [f"{key}: no data for {name!r}, only {sorted(seen)}" for name in expected if name not in seen]
    wrong = [
        f"{key} {name!r}: {seen[name]} is not {wanted}"
        for name, wanted in expected.items()
        if name in seen and not agrees(seen[name], wanted)
    ]
    return missing + wrong


def agrees(value: float, wanted: Any) -> bool:
    """Rates are taken over samples a second apart, so they agree to some percent only."""
    if isinstance(wanted, tuple):
        return bool(0.999 * wanted[0] <= value <= 1.001 * wanted[1])
    return value == pytest.approx(wanted, rel=0.2, abs=1e-3)


def test_the_board_in_the_repository_is_what_the_script_makes(tmp_path):
    pytest.importorskip("grafana_foundation_sdk", reason="the board is made with grafana-foundation-sdk")
    made = subprocess.run(
        [sys.executable, "-c", "import build; print(build.make_board(), end='')"],
        cwd=DASHBOARDS,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == BOARD.read_text(), "run: python dashboards/build.py"


def test_panels_have_what_they_need():
    board = json.loads(BOARD.read_text())
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert [row.split()[0] for row in rows] == ["Is", "What", "Is", "Which"]  # the four questions, in order
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    names = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", BOARD.read_text())) - {"__rate_interval", "__all"}
    assert used == names == {"source", "run", "rank"}


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules/relaxcomm.yml"), ("test", "rules")],
)
def test_promtool(arguments):
    if shutil.which("promtool") is None:
        pytest.skip("the Debian package prometheus, which has promtool, is not installed")
    tests = ["tests/relaxcomm.yml"] if arguments[0] == "test" else []
    done = subprocess.run(
        ["promtool", *arguments, *tests],
        cwd=DASHBOARDS / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_and_tells_what_to_do():
    groups = yaml.safe_load((DASHBOARDS / "prometheus/rules/relaxcomm.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    tested = yaml.safe_load((DASHBOARDS / "prometheus/tests/relaxcomm.yml").read_text())["tests"]
    names = {
        one["alertname"] for test in tested for one in test.get("alert_rule_test", ()) if "exp_alerts" in one
    }
    assert alerts == names
    for group in groups:
        for rule in group["rules"]:
            assert "alert" not in rule or {"summary", "description"} <= set(rule["annotations"])

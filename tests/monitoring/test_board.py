"""Every expression of the board and of the rules, asked of a real Prometheus, against what ranks count."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.monitoring.server import DASHBOARDS, Prometheus, job, prometheus
from tests.waiting import until

EARLY, LATE = 20, 170  # steps at which the ranks hold
BOARD = DASHBOARDS / "grafana/boards/relaxcomm.json"
WORKER_BOARD = DASHBOARDS / "grafana/boards/relaxcomm-worker.json"
BOARDS = (BOARD, WORKER_BOARD)
BESIDE_THE_MEDIAN = " (dashed: the median)"
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
class Rank:
    """What one rank showed of itself where it held, early and late, and what it gained in between."""

    early: dict[str, Any]
    late: dict[str, Any]
    seconds: float  # between the looks of Prometheus

    def gained(self, name: str) -> float:
        return float(self.late[name] - self.early[name])

    def rate(self, name: str) -> float:
        return self.gained(name) / self.seconds

    def moved(self, way: int, primitive: str | None = None) -> float:
        """Bytes sent (0) or received (1) between the two, of one primitive or of all."""
        names = self.late["bytes_moved"] if primitive is None else [primitive]
        nothing = (0, 0)
        return float(
            sum(
                self.late["bytes_moved"][n][way] - self.early["bytes_moved"].get(n, nothing)[way]
                for n in names
            )
        )

    @property
    def sent(self) -> float:
        return float(sum(sent for sent, _ in self.late["bytes_moved"].values()))

    @property
    def lssr(self) -> float:
        return 1 - float(self.late["synchronisations"] / self.late["steps"])

    @property
    def distance(self) -> float:
        return float(self.late["values"]["replica_distance"] / self.late["values"]["parameter_norm"])


Ranks = list[Rank]
STEP, EXPOSED, HIDDEN, CALLBACK = "step_seconds", "exposed_seconds", "hidden_seconds", "callback_seconds"


def total(name: str) -> Callable[[Ranks], float]:
    return lambda ranks: sum(rank.gained(name) for rank in ranks)


def each(look: Callable[[Rank], float]) -> Callable[[Ranks], dict[str, float]]:
    """A value a rank."""
    return lambda ranks: {str(number): look(rank) for number, rank in enumerate(ranks)}


def latest(name: str) -> Callable[[Ranks], dict[str, float]]:
    """The latest of what each rank showed under a name."""
    return each(lambda rank: rank.late["values"][name])


def exchange_seconds(ranks: Ranks) -> dict[str, float]:
    """Mean time of an operation."""
    both = [(rank.early["exchanges"]["all_gather"], rank.late["exchanges"]["all_gather"]) for rank in ranks]
    count, seconds = (sum(late[place] - early[place] for early, late in both) for place in (0, 1))
    return {"all_gather": seconds / count}


def quantile(ranks: Ranks, share: float) -> tuple[float, float]:
    """The bucket in which a quantile of the steps lies."""
    bounds = [0.0, *ranks[0].late["step_bounds"]]
    late, early = (
        [sum(column) for column in zip(*counts, strict=True)]
        for counts in (
            [rank.late["step_counts"] for rank in ranks],
            [rank.early["step_counts"] for rank in ranks],
        )
    )
    counts = [a - b for a, b in zip(late, early, strict=True)]
    seen = 0
    for place, count in enumerate(counts):
        seen += count
        if seen >= share * sum(counts):
            return bounds[max(0, place - 1)], bounds[min(place + 2, len(bounds) - 1)]
    raise AssertionError(counts)


def by_primitive(ranks: Ranks) -> dict[str, float]:
    """Bytes a second that all ranks sent."""
    return {
        name: sum(rank.moved(0, name) for rank in ranks) / ranks[0].seconds
        for name in ranks[0].late["bytes_moved"]
    }


Expectation = Callable[[Ranks], Any]
EXPECTED: dict[tuple[str, str], Expectation] = {
    ("Where does the time of a step go?", "A"): lambda ranks: (
        (total(STEP)(ranks) - total(EXPOSED)(ranks)) / total("steps")(ranks)
    ),
    ("Where does the time of a step go?", "B"): lambda ranks: total(EXPOSED)(ranks) / total("steps")(ranks),
    ("How much of a step waits for the network?", "A"): each(
        lambda rank: rank.gained(EXPOSED) / rank.gained(STEP)
    ),
    ("How much communication hides behind computing?", "A"): each(lambda rank: rank.rate(EXPOSED)),
    ("How much communication hides behind computing?", "B"): each(lambda rank: rank.rate(HIDDEN)),
    ("How long are most steps, and the slowest?", "A"): lambda ranks: quantile(ranks, 0.5),
    ("How long are most steps, and the slowest?", "B"): lambda ranks: quantile(ranks, 0.95),
    ("How long does an exchange take?", "A"): exchange_seconds,
    ("How many fold fewer?", "A"): lambda ranks: (
        sum(rank.late["bytes_uncompressed"] for rank in ranks) / sum(rank.sent for rank in ranks)
    ),
    ("What share of steps is local?", "A"): lambda ranks: sum(rank.lssr for rank in ranks) / 3,
    ("How many bytes were saved?", "A"): lambda ranks: sum(
        rank.late["bytes_uncompressed"] - rank.sent for rank in ranks
    ),
    ("How much is sent, and how much would be?", "A"): each(lambda rank: rank.moved(0) / rank.seconds),
    ("How much is sent, and how much would be?", "B"): each(lambda rank: rank.rate("bytes_uncompressed")),
    ("What are the bytes sent for?", "A"): by_primitive,
    ("What are the bytes sent for?", "B"): lambda ranks: (
        sum(rank.late["evaluation_bytes"][0] - rank.early["evaluation_bytes"][0] for rank in ranks)
        / ranks[0].seconds
    ),
    ("Who receives most?", "A"): each(lambda rank: rank.moved(1) / rank.seconds),
    ("How near is the trigger to its threshold?", "A"): each(lambda rank: rank.late["triggers"]["0"][0]),
    ("How near is the trigger to its threshold?", "B"): lambda ranks: 0.001,
    ("How good is the averaged model?", "A"): lambda ranks: LATE / 1000,
    ("Does the loss fall on every rank?", "A"): latest("loss"),
    ("How far apart are the replicas?", "A"): each(lambda rank: rank.distance),
    ("Does what compression leaves out pile up?", "A"): latest("residual_norm"),
    ("How late are results applied?", "A"): lambda ranks: {},  # nor is anybody behind where all keep step
    ("How large are the batches?", "A"): each(lambda rank: 16.0),
    ("How many samples a second?", "A"): lambda ranks: sum(rank.rate("samples") for rank in ranks),
    ("Which rank computes longest?", "A"): each(
        lambda rank: (rank.gained(STEP) - rank.gained(EXPOSED)) / rank.gained("steps")
    ),
    ("How many steps a second?", "A"): each(lambda rank: rank.rate("steps")),
    ("How many steps is each rank behind?", "A"): lambda ranks: {},
    ("Does every rank answer?", "A"): each(lambda rank: 1.0),
    ("How long since the last synchronisation?", "A"): each(
        lambda rank: rank.late["asked"] - rank.late["last_synchronisation"]
    ),
    ("How long does the engine itself take?", "A"): each(
        lambda rank: rank.gained(CALLBACK) / rank.gained("steps")
    ),
    ("rule", "relaxcomm:step_seconds:mean1m"): each(lambda rank: rank.gained(STEP) / rank.gained("steps")),
    ("rule", "relaxcomm:exposed_communication:ratio1m"): each(
        lambda rank: rank.gained(EXPOSED) / rank.gained(STEP)
    ),
    ("rule", "relaxcomm:compute_seconds:mean1m"): each(
        lambda rank: (rank.gained(STEP) - rank.gained(EXPOSED)) / rank.gained("steps")
    ),
    ("rule", "relaxcomm:bytes_sent:rate1m"): each(lambda rank: rank.moved(0) / rank.seconds),
    ("rule", "relaxcomm:compression:ratio"): each(lambda rank: rank.late["bytes_uncompressed"] / rank.sent),
    ("rule", "relaxcomm:lssr:ratio"): each(lambda rank: rank.lssr),
    ("rule", "relaxcomm:replica_distance:ratio"): each(lambda rank: rank.distance),
}


def median(each_rank: Expectation) -> Expectation:
    return lambda ranks: statistics.median(each_rank(ranks).values())


BESIDE = (
    "Which rank computes longest?",
    "How much of a step waits for the network?",
    "How many steps a second?",
    "How long does the engine itself take?",
    "Who receives most?",
    "Does the loss fall on every rank?",
    "How far apart are the replicas?",
    "Does what compression leaves out pile up?",
    "How long since the last synchronisation?",
)
for _title in BESIDE:
    EXPECTED[_title + BESIDE_THE_MEDIAN, "A"] = EXPECTED[_title, "A"]
    EXPECTED[_title + BESIDE_THE_MEDIAN, "B"] = median(EXPECTED[_title, "A"])


def expressions(seconds: float = 60) -> dict[tuple[str, str], str]:
    """Those of all panels and recording rules, with the board's variables filled in."""
    found = {}
    for panel in (panel for board in BOARDS for panel in json.loads(board.read_text())["panels"]):
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", f"{seconds * 1000:.0f}ms")
            found[panel["title"], target["refId"]] = text.replace("$run", "tested").replace("$rank", ".*")
    for group in yaml.safe_load((DASHBOARDS / "prometheus/rules/relaxcomm.yml").read_text())["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                found["rule", rule["record"]] = rule["expr"].replace("[1m]", f"[{seconds * 1000:.0f}ms]")
    return found


def test_every_expression_has_an_expectation():
    assert set(expressions()) == set(EXPECTED)


@pytest.mark.ranks
@pytest.mark.timeout(900)
def test_every_expression_has_the_values_that_the_ranks_count(tmp_path):
    """The ranks hold at two steps until Prometheus has seen them, so that no speed matters."""
    with (
        job(tmp_path / "job", ALGORITHM, holds=(EARLY, LATE)) as training,
        prometheus(tmp_path, training.port, scrape="500ms") as server,
    ):
        first = training.held(EARLY)
        begin = min(seen(server, first)) - 0.1
        training.tell(f"go-{EARLY}")
        last = training.held(LATE)
        at = max(seen(server, last)) + 0.01
        found = {key: server.query(expression, at) for key, expression in expressions(at - begin).items()}
        behind = expressions()["How many steps is each rank behind?", "A"].replace('"false"', '"true"')
        assert [steps for _, steps in server.query(behind, at)] == [0.0] * 3  # as where all do not keep step
        assert {rule["health"] for rule in server.rules()} == {"ok"}
        training.tell(f"go-{LATE}")
        training.end()
    ranks = [Rank(a, b | {"asked": at}, at - begin) for a, b in zip(first, last, strict=True)]
    wrong = [text for key, series in found.items() for text in compare(key, series, EXPECTED[key](ranks))]
    assert not wrong, "\n".join(wrong)


def seen(server: Prometheus, held: list[dict[str, Any]]) -> list[float]:
    """When Prometheus looked at each rank, at least twice since all have been held."""
    since = max(one["time"] for one in held) + 1.5

    def look() -> list[float]:
        times = [time for _, time in server.query("timestamp(relaxcomm_samples_total)")]
        return times if len(times) == 3 and min(times) > since else []

    return until(look, "all ranks in Prometheus")


def compare(key: tuple[str, str], series: list[tuple[dict[str, str], float]], expected: Any) -> list[str]:
    """What is not as expected: one value for all, or one by rank or primitive; a pair is a range."""
    if not isinstance(expected, dict):
        expected = {"": expected}
    seen = {
        "" if set(expected) == {""} else labels.get("primitive", labels.get("rank", "")): value
        for labels, value in series
    }
    if not expected:
        return [f"{key}: {series} where nothing is to be said"] if series else []
    missing = [f"{key}: no data for {name!r}, only {sorted(seen)}" for name in expected if name not in seen]
    wrong = [
        f"{key} {name!r}: {seen[name]} is not {wanted}"
        for name, wanted in expected.items()
        if name in seen and not agrees(seen[name], wanted)
    ]
    return missing + wrong


def agrees(value: float, wanted: Any) -> bool:
    """A rate is wrong by up to a sample's interval at each end, so it agrees to some percent only."""
    if isinstance(wanted, tuple):
        return bool(0.999 * wanted[0] <= value <= 1.001 * wanted[1])
    return value == pytest.approx(wanted, rel=0.2, abs=1e-6)


def test_the_boards_in_the_repository_are_what_the_script_makes():
    pytest.importorskip("grafana_foundation_sdk", reason="the boards are made with grafana-foundation-sdk")
    made = subprocess.run(
        [sys.executable, "-c", "import build, json; print(json.dumps(build.make_boards()))"],
        cwd=DASHBOARDS,
        capture_output=True,
        text=True,
        check=True,
    )
    kept = {board.name: board.read_text() for board in BOARDS}
    assert json.loads(made.stdout) == kept, "run: python dashboards/build.py"
    assert {path.name for path in BOARD.parent.iterdir()} == set(kept)


def keys_outside_the_schema(board: Any) -> set[str]:
    """Keys that Grafana's published schema does not know, as its own SDK has it, with the panels' options."""
    pytest.importorskip("grafana_foundation_sdk", reason="it brings Grafana's schema along")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    return {*keys_of(board)} - {*keys_of(known)}


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    """Where something stands, and what stands there."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from keys_of(one, f"{path}/{key}")
    else:
        yield f"{path} {value!r}"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_is_one_by_grafanas_published_schema(path):
    board = json.loads(path.read_text())
    assert keys_outside_the_schema(board) == set()
    panel = next(one for one in board["panels"] if one["type"] == "timeseries")
    panel["options"]["legends"] = panel["fieldConfig"]["defaults"]["units"] = board["tag"] = "unknown"
    assert len(keys_outside_the_schema(board)) == 3


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_have_what_they_need(path):
    board = json.loads(path.read_text())
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert all(row.endswith("?") for row in rows)
    assert len(rows) >= 3
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["title"].removesuffix(BESIDE_THE_MEDIAN).endswith("?")
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    names = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", path.read_text())) - {"__rate_interval", "__all"}
    assert used == names == {"source", "run", "rank"}


def test_the_boards_link_to_each_other():
    linked = {path: json.loads(path.read_text()) for path in BOARDS}
    targets = {path: board["links"][0]["url"] for path, board in linked.items()}
    assert targets == {
        BOARD: f"/d/{linked[WORKER_BOARD]['uid']}",
        WORKER_BOARD: f"/d/{linked[BOARD]['uid']}",
    }


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


ABOUT = {
    "RelaxcommWorkerStalled": "Does every rank answer?",
    "RelaxcommNobodyAnswers": "Does every rank answer?",
    "RelaxcommTrainingStands": "How many steps a second?",
    "RelaxcommReplicaDrift": "How far apart are the replicas?",
    "RelaxcommNoSynchronisation": "How long since the last synchronisation?",
    "RelaxcommResidualGrowing": "Does what compression leaves out pile up?",
    "RelaxcommExposedCommunication": "How much of a step waits for the network?",
}


def test_every_alert_links_to_the_panel_that_shows_it():
    board = json.loads(BOARD.read_text())
    titles = {panel["id"]: panel["title"] for panel in board["panels"] if panel["type"] != "row"}
    assert len(titles) == sum(panel["type"] != "row" for panel in board["panels"])
    groups = yaml.safe_load((DASHBOARDS / "prometheus/rules/relaxcomm.yml").read_text())["groups"]
    links = {
        rule["alert"]: re.match(rf"/d/{board['uid']}\?viewPanel=(\d+)&", rule["annotations"]["panel"])
        for group in groups
        for rule in group["rules"]
        if "alert" in rule
    }
    assert {alert: titles[int(link[1])] for alert, link in links.items()} == ABOUT

"""What the exporters show, held against NumPy and against what the engine counts for the program."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from itertools import pairwise

import numpy as np
import prometheus_client
import pytest
import torch

import relaxcomm
from relaxcomm import NonFiniteError
from relaxcomm.monitoring.observations import Histogram, InFlight
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.step import replica_norms
from tests.engine.harness import in_process, on_gloo, values
from tests.models import CASES, make_optimizer, take_step, trainable
from tests.monitoring.harness import fetch, parse, read_log, value


def trained(world, config, steps, observe=True):
    """The series after training, the statistics then, and the parameters before each step's exchange."""
    replica_norms._SHARE = math.inf  # no budget: every synchronisation is sampled
    model, optimizer = trainable("toy", "plain")
    config = {"metrics": {"port": 0}, **config}
    locals_, losses = [], []
    with world.attach(model, optimizer, config) as engine:
        for step in range(steps):
            loss = CASES["toy"].local_loss(model, step, world.rank)
            if observe:
                engine.observe(loss=loss)
            losses.append(loss.item())
            loss.backward()
            before = values(model)
            gradient = np.concatenate(
                [p.grad.double().numpy().ravel() for p in model.parameters() if p.requires_grad]
            )
            optimizer.step()
            locals_.append(before - optimizer.param_groups[0]["lr"] * gradient)
            optimizer.zero_grad()
        series = parse(fetch(f"{engine.metrics_url}/metrics"))
        residual = [
            slot
            for state in engine._session.bound.state.slots.values()
            for name, slot in state["compressor"].items()
            if name == "residual"
        ]
        norm = float(np.sqrt(sum(float(slot.double().square().sum()) for slot in residual)))
        return series, dict(engine.statistics), locals_, losses, norm


@pytest.mark.parametrize("network", [in_process, on_gloo])
def test_local_sgd_shows_its_counts_and_the_distance_between_replicas(network, tmp_path):
    config = {"algorithm": {"name": "local_sgd", "steps": 4}, "output": str(tmp_path)}
    found = network(trained, 3, config, 9)
    together = np.mean([locals_[7] for _, _, locals_, _, _ in found], axis=0)
    runs = set()
    for rank, (series, statistics, locals_, losses, _) in enumerate(found):
        assert {dict(labels)["rank"] for _, labels in series} == {str(rank)}
        runs |= {dict(labels)["run"] for _, labels in series}
        assert value(series, "relaxcomm_steps_total", outcome="synchronised") == 2
        assert value(series, "relaxcomm_steps_total", outcome="local") == 7
        for what in ("sent", "received"):
            assert value(series, f"relaxcomm_bytes_{what}_total") == statistics[f"bytes_{what}"]
        assert value(series, "relaxcomm_bytes_uncompressed_total") == statistics["bytes_uncompressed"]
        assert value(series, "relaxcomm_step_seconds_count") == 8  # the first has no beginning
        assert value(series, "relaxcomm_loss") == losses[-1]
        assert value(series, "relaxcomm_info", algorithm="local_sgd", world_size="3") == 1
        assert value(series, "relaxcomm_world_size") == 3
        distance = float(np.linalg.norm(locals_[7] - together))
        assert value(series, "relaxcomm_replica_distance") == pytest.approx(distance, rel=1e-6)
        norm = float(np.linalg.norm(together))
        assert value(series, "relaxcomm_parameter_norm") == pytest.approx(norm, rel=0.1)
        exposed = value(series, "relaxcomm_exposed_communication_seconds_total")
        assert 0 < exposed <= value(series, "relaxcomm_step_seconds_sum")
        check_log(read_log(tmp_path, rank), series, rank)
    assert len(runs) == 1


def check_log(lines, series, rank):
    head, *synchronisations, last = lines
    assert (head["rank"], head["algorithm"], head["world_size"]) == (rank, "local_sgd", 3)
    assert [(line["step"], line["synchronisations"]) for line in synchronisations] == [(4, 1), (8, 2)]
    summary = last["summary"]
    assert summary["status"] == "closed at step 9"
    assert summary["steps"] == 9
    assert summary["values"]["loss"] == value(series, "relaxcomm_loss")
    moved = value(series, "relaxcomm_bytes_sent_total", primitive="all_reduce")
    assert summary["bytes_moved"]["all_reduce"][0] == moved
    assert synchronisations[-1]["bytes_sent"] == value(series, "relaxcomm_bytes_sent_total")


def test_bytes_are_told_apart_by_primitive():
    rules = [
        {"payload": "gradients", "exchange": "all_reduce"},
        {
            "payload": "parameters",
            "exchange": {"gossip": {"topology": "ring"}},
            "trigger": {"every": {"steps": 2}},
        },
    ]
    for series, statistics, *_ in in_process(trained, 3, {"algorithm": {"rules": rules}}, 6):
        gossip = 2 * 3 * sum(p.numel() for p in CASES["toy"].model().parameters() if p.requires_grad)
        size = next(CASES["toy"].model().parameters()).element_size()
        assert value(series, "relaxcomm_bytes_sent_total", primitive="gossip") == gossip * size
        reduced = value(series, "relaxcomm_bytes_sent_total", primitive="all_reduce")
        assert reduced > 6 * 4 / 3 * gossip / 6 * size * 0.99
        assert value(series, "relaxcomm_bytes_sent_total") == statistics["bytes_sent"]


def switched(world, first, second):
    """What the snapshot shows before a switch and after more steps: bytes and exchanges by primitive."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": first}) as engine:
        shown = []
        for step in range(6):
            if step == 4:
                shown.append(engine.snapshot())
                engine.switch(second)
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        return [*shown, engine.snapshot()]


def test_a_switch_leaves_what_was_counted_under_its_primitive():
    gossip = {"rules": [{"payload": "parameters", "exchange": {"gossip": {"topology": "ring"}}}]}
    for before, after in in_process(switched, 3, "bsp", gossip):
        assert before.bytes_moved["all_reduce"][0] > 0
        assert after.bytes_moved["all_reduce"] == before.bytes_moved["all_reduce"]
        assert after.exchanges["all_reduce"] == before.exchanges["all_reduce"]
        num = sum(p.numel() for p in CASES["toy"].model().parameters() if p.requires_grad)
        size = next(CASES["toy"].model().parameters()).element_size()
        assert after.bytes_moved["gossip"] == (2 * 2 * num * size,) * 2  # two steps, two neighbours


def test_residual_norm_is_that_of_all_buckets():
    config = {"algorithm": {"name": "topk_sgd", "density": 0.05}}
    for series, _, _, _, norm in in_process(trained, 3, config, 3):
        assert norm > 0
        assert value(series, "relaxcomm_residual_norm") == pytest.approx(norm, rel=1e-6)


def test_selsync_shows_what_its_trigger_compared():
    config = {"algorithm": {"name": "selsync", "threshold": 0.2, "window_steps": 2, "smoothing": 0.5}}
    for series, *_ in in_process(trained, 3, config, 5):
        assert value(series, "relaxcomm_trigger_threshold", rule="0") == 0.2
        assert 0 < value(series, "relaxcomm_trigger_value", rule="0") < 10


def test_late_averages_are_stale():
    for series, *_ in in_process(trained, 3, {"algorithm": "d_psgd", "topology": "ring"}, 4):
        assert value(series, "relaxcomm_staleness_steps") == 1


def drifting(world, policy):
    model, optimizer = trainable("toy", "plain")
    guard = {"every_steps": 2, "policy": policy}
    shown = []
    with world.attach(
        model, optimizer, {"algorithm": "bsp", "drift_guard": guard, "metrics": {"port": 0}}
    ) as e:
        for step in range(6):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            if step == 3 and world.rank == 1:
                with torch.no_grad():
                    model[2].weight[3, 3] += 0.75
            shown.append(
                value(parse(fetch(f"{e.metrics_url}/metrics")), "relaxcomm_replica_distance") if step else 0
            )
    return shown


@pytest.mark.filterwarnings("ignore::relaxcomm.DriftWarning")
@pytest.mark.parametrize("policy", ["warn", "average"])
def test_the_drift_guard_measures_how_far_a_replica_is(policy):
    for rank, shown in enumerate(in_process(drifting, 3, policy)):
        expected = 0.75 * (2 / 3 if rank == 1 else 1 / 3)
        assert shown[:5] == [0, 0, 0, 0, 0]
        assert shown[5] == pytest.approx(expected, rel=1e-5)


def evaluations(world, algorithm, folder):
    """What is shown after two evaluations of a run."""
    model, optimizer = trainable("toy", "plain")
    config = {"algorithm": algorithm, "metrics": {"port": 0}, "output": str(folder)}
    with world.attach(model, optimizer, config) as engine:
        for accuracy in (0.25, 0.75):
            take_step(CASES["toy"].local_loss(model, 0, world.rank), optimizer)
            with engine.averaged():
                engine.observe_evaluation(accuracy=accuracy, perplexity=torch.tensor(9.5))
        with pytest.raises(relaxcomm.UsageError, match="is no number"):
            engine.observe_evaluation(accuracy="high")
        return parse(fetch(f"{engine.metrics_url}/metrics")), dict(engine.statistics)


def test_evaluations_and_their_bytes_are_shown_apart_from_training(tmp_path):
    local = {"name": "local_sgd", "steps": 50}
    for rank, (series, counts) in enumerate(in_process(evaluations, 3, local, tmp_path)):
        assert value(series, "relaxcomm_evaluation", metric="accuracy") == 0.75
        assert value(series, "relaxcomm_evaluation", metric="perplexity") == 9.5
        for way in ("sent", "received"):
            assert value(series, f"relaxcomm_bytes_{way}_total") == counts[f"bytes_{way}"]
            shown = value(series, f"relaxcomm_evaluation_bytes_{way}_total")
            assert shown == counts[f"evaluation_bytes_{way}"] > 0
        lines = [line["evaluation"] for line in read_log(tmp_path, rank) if "evaluation" in line]
        assert lines == [{"accuracy": 0.25, "perplexity": 9.5}, {"accuracy": 0.75, "perplexity": 9.5}]


@pytest.mark.parametrize(
    ("algorithm", "synchronous", "shows"),
    [("bsp", "true", False), ("local_sgd", "true", False), ("ssp", "false", True)],
)
def test_staleness_is_shown_only_where_there_can_be_some(algorithm, synchronous, shows, tmp_path):
    for series, _ in in_process(evaluations, 3, algorithm, tmp_path):
        assert value(series, "relaxcomm_info", synchronous=synchronous) == 1
        assert any(name == "relaxcomm_staleness_steps" for name, _ in series) == shows


def own_metrics(world):
    model = CASES["toy"].model()
    with world.attach(
        model, make_optimizer("plain", model), {"algorithm": "bsp", "metrics": {"port": 0}}
    ) as e:
        prometheus_client.Counter("retries", "Lost messages.", registry=e.metrics).inc(3)
        e.observe(temperature=torch.tensor(36.6))
        for bad in ("steps", "bytes_sent_total", "step_seconds_count", "info_info", "Loss", "a b", ""):
            with pytest.raises(relaxcomm.UsageError, match="cannot be called"):
                e.observe(**{bad: 1.0})
        for bad in (torch.ones(2), "3", None):
            with pytest.raises(relaxcomm.UsageError, match="is no number"):
                e.observe(temperature=bad)
        return parse(fetch(f"{e.metrics_url}/metrics"))


def test_a_plug_in_adds_a_metric_in_one_line():
    for rank, series in enumerate(in_process(own_metrics, 3)):
        assert value(series, "retries_total", rank=str(rank)) == 3
        assert value(series, "relaxcomm_temperature", rank=str(rank)) == pytest.approx(36.6)


def rounds(world):
    """Steps by outcome, read after every step and every round."""
    model, optimizer = trainable("toy", "plain")
    dtype = next(model.parameters()).dtype
    data = torch.utils.data.TensorDataset(torch.randn(24, model[0].in_features, dtype=dtype))
    shown = []

    def look():
        series = parse(fetch(f"{engine.metrics_url}/metrics"))
        shown.append([value(series, "relaxcomm_steps_total", outcome=o) for o in ("local", "synchronised")])

    with world.attach(model, optimizer, {"algorithm": "fedavg", "metrics": {"port": 0}}) as engine:
        loader = engine.loader(data, batch_size=4)
        for _ in range(3):
            for (x,) in loader:
                take_step(model(x).square().mean(), optimizer)
                look()
            look()
    return shown


def test_counters_never_fall_where_rounds_end_between_steps():
    for shown in in_process(rounds, 3):
        assert all(a <= b for early, late in pairwise(shown) for a, b in zip(early, late, strict=True))
        assert shown[-1][1] == 3


def gone_back(world, period):
    """Steps by outcome before an earlier state is loaded, then, and after more steps."""
    model, optimizer = trainable("toy", "plain")
    algorithm = {"name": "local_sgd", "steps": period}
    shown = []
    with world.attach(model, optimizer, {"algorithm": algorithm, "metrics": {"port": None}}) as engine:
        for step in range(14):
            if step == 3:
                known = engine.run_state_dict()
            elif step == 9:
                engine.load_run_state_dict(known)
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            series = parse(prometheus_client.generate_latest(engine.metrics).decode())
            shown.append(
                [value(series, "relaxcomm_steps_total", outcome=o) for o in ("local", "synchronised")]
            )
    return shown


@pytest.mark.parametrize(
    ("period", "before", "after"),
    [
        (3, [6, 3], [[3, 1], [4, 1], [4, 2], [5, 2], [6, 2]]),
        (20, [9, 0], [[4, 0], [5, 0], [6, 0], [7, 0], [8, 0]]),  # nothing was exchanged in between
    ],
)
def test_steps_are_those_of_the_state_that_was_loaded(period, before, after):
    for shown in in_process(gone_back, 3, period):
        assert shown[8] == before
        assert shown[9:] == after


def last_round(world):
    """How long this rank waited in the one round of a run, and what is shown of it in the end."""
    model, optimizer = trainable("toy", "plain")
    data = torch.utils.data.TensorDataset(torch.randn(12, model[0].in_features, dtype=model[0].weight.dtype))
    with world.attach(model, optimizer, {"algorithm": "fedavg"}) as engine:
        for (x,) in engine.loader(data, batch_size=2):
            take_step(model(x).square().mean(), optimizer)
        waited = engine.statistics["exposed_communication_seconds"]
    return waited, engine.snapshot().exposed_seconds


def test_the_wait_of_a_last_round_is_counted():
    for waited, shown in in_process(last_round, 2):
        assert shown == pytest.approx(waited)
        assert waited > 0


def test_a_misspelt_counter_is_told_the_one_that_was_meant():
    with pytest.raises(KeyError, match="'bytes_snt'; did you mean 'bytes_sent'"):
        Statistics(ByteCounters())["bytes_snt"]


def test_a_round_that_an_evaluation_follows_is_waited_for_all_the_same(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    seen = Statistics(ByteCounters())
    for now[0] in (0.0, 1.0):
        seen.tick(False, 0)
    flight = seen.in_flight.departed()
    now[0] = 2.0
    with seen.waiting:
        now[0] = 5.0
    seen.in_flight.arrived("0", flight)
    with seen.evaluating(), seen.evaluating(), seen.waiting:  # all do something together inside
        now[0] = 10.0
    assert seen.evaluation_waiting_seconds == 5.0
    assert (seen.exposed_seconds, seen.hidden_seconds) == (3.0, 1.0)
    seen.tick(False, 0)
    with seen.waiting:
        now[0] = 12.0
    for _ in range(2):
        seen.pause()
    assert (seen.exposed_seconds, seen.hidden_seconds) == (5.0, 1.0)
    assert (seen.step_times.count, seen.step_times.total) == (1, 1.0)


def test_histogram_and_time_on_the_way(monkeypatch):
    times = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        times.observe(seconds)
    assert (times.counts, times.count, times.total) == ([2, 1, 1], 4, pytest.approx(7.65))
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    flights = InFlight()
    first = flights.departed()
    now[0] = 2.0
    second = flights.departed()
    now[0] = 5.0
    flights.arrived("0", first)
    now[0] = 6.0
    assert flights.seconds(6.0) == 6.0  # the second is still on its way
    flights.arrived("1", second)
    now[0] = 9.0
    assert (flights.seconds(9.0), flights.by_rule) == (6.0, {"0": (1, 5.0), "1": (1, 4.0)})


def test_what_is_forgotten_is_on_its_way_no_more(monkeypatch):
    now = [1.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    flights = InFlight()
    lost = flights.departed()
    now[0] = 3.0
    flights.forget()
    now[0] = 10.0
    assert flights.seconds(10.0) == 2.0
    later = flights.departed()
    now[0] = 11.0
    flights.landed(lost)  # after all
    now[0] = 12.0
    assert flights.seconds(12.0) == 4.0  # the later one is still on its way
    flights.arrived("0", later)
    now[0] = 15.0
    assert flights.seconds(15.0) == 4.0


def after_a_bad_step(world):
    """Hidden seconds in a long step after one that was not finite on any rank, and dropped what it sent."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    phase = {"after_steps": 4, "algorithm": {"name": "local_sgd", "steps": 1}}  # of which nothing hides
    with world.attach(model, optimizer, {"algorithm": "delayed_sgd", "phases": [phase]}) as engine:
        for step in range(7):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean() * (float("nan") if step == 2 else 1.0)
            with suppress(NonFiniteError):
                loss.backward()
                optimizer.step()
            if step == 5:
                hidden = engine.statistics["hidden_communication_seconds"]
                time.sleep(0.2)
        return engine.statistics["hidden_communication_seconds"] - hidden


def test_what_a_bad_step_has_sent_is_on_its_way_no_more():
    assert all(hidden < 0.1 for hidden in in_process(after_a_bad_step, 2))


def many_steps(world, folder, log_bytes, steps):
    model, optimizer = trainable("toy", "plain")
    metrics = {"port": None, "log_bytes": log_bytes}
    with world.attach(
        model, optimizer, {"algorithm": "bsp", "metrics": metrics, "output": str(folder)}
    ) as engine:
        for step in range(steps):
            take_step(CASES["toy"].local_loss(model, step % 9, world.rank), optimizer)
            if step % 7 == 0:
                engine.observe_evaluation(accuracy=step / steps)


def test_a_long_run_keeps_its_log_below_the_limit_with_the_first_and_the_last_line(tmp_path):
    limit, steps = 20_000, 300
    in_process(many_steps, 2, tmp_path, limit, steps)
    for rank in range(2):
        (path,) = tmp_path.glob(f"*.rank{rank}.jsonl")
        assert limit / 4 < path.stat().st_size < limit
        head, *lines, last = read_log(tmp_path, rank)
        assert head["rank"] == rank
        assert last["summary"]["steps"] == steps
        written = [line["step"] for line in lines if "synchronisations" in line]
        assert (written[0], written[-1]) == (1, steps)
        gaps = {late - early for early, late in pairwise(written[:-1])}
        assert len(gaps) == 1, "sampled evenly over the whole run"
        assert gaps.pop() > 1
        evaluated = [line["step"] for line in lines if "evaluation" in line]
        assert (evaluated[0], evaluated[-1]) == (1, 7 * ((steps - 1) // 7) + 1)
    with pytest.raises(relaxcomm.ConfigError, match="log_bytes"):
        in_process(many_steps, 2, tmp_path, 100, 1)

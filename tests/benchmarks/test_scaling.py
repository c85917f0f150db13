"""The lab's scaling: the prediction by hand, growth on made-up records, and two small hosts."""

import json
import math
import sys

import pytest

from benchmarks.lab import network, scaling, scaling_report
from benchmarks.lab.crew import crew
from benchmarks.lab.network import NetworkUnavailableError
from benchmarks.lab.scaling_model import costs, growths, predicted_seconds, slope
from benchmarks.lab.scaling_report import markdown


def record(label, workers, numel, seconds, **more):
    ring = 2 * (workers - 1) / workers * 4 * numel
    return {
        "kind": "exchange",
        "label": label,
        "rate": "1gbit",
        "workers": workers,
        "numel": numel,
        "seconds": seconds,
        "bytes_sent": ring,
        "declared_bytes": ring,
        "operations": 1,
        "cpu_seconds": 1e-9 * numel,
        **more,
    }


def made_up(rate="1gbit"):
    """A reference at 1 Gbit/s and 2 ms, and a contender whose time grows as the square of the size."""
    records = [{"kind": "environment"}]
    for workers in (2, 4):
        records.append(record("all_reduce", workers, 1, 0.002, rate=rate))
        for numel in (10**6, 10**7):
            ideal = 0.002 + 8 * 2 * (workers - 1) / workers * 4 * numel / 1e9
            for jitter in (0.5, 1.0, 1.5):
                records.append(record("all_reduce", workers, numel, jitter * ideal, rate=rate))
            records.append(
                record(
                    "slow", workers, numel, 1e-13 * numel**2, rate=rate, cpu_seconds=1e-9 * numel * workers
                )
            )
    return records


def test_the_prediction_by_hand():
    # Two messages of 3 ms, and 2 MB at 100 Mbit/s: 6 ms and 160 ms.
    assert predicted_seconds(2, 2_000_000, 0.003, 100e6) == pytest.approx(0.166)


def test_costs_are_medians_beside_their_prediction():
    found = {(cost.label, cost.workers, cost.numel): cost for cost in costs(made_up())}
    assert len(found) == 8, "the tiny message is no cost of its own"
    cost = found["all_reduce", 4, 10**7]
    assert cost.predicted == pytest.approx(0.002 + 0.48)  # 60 MB at 1 Gbit/s
    assert cost.measured == pytest.approx(cost.predicted)
    assert len(cost.seconds) == 3


def test_unshaped_links_are_as_fast_as_the_reference():
    found = {(cost.label, cost.workers, cost.numel): cost for cost in costs(made_up("unshaped"))}
    assert found["slow", 2, 10**6].predicted == pytest.approx(0.002 + 0.032, rel=1e-3)
    assert found["slow", 4, 10**7].predicted == pytest.approx(0.002 + 0.48, rel=1e-3)


def test_an_exponent_is_a_slope_in_logarithms():
    assert slope([1, 10, 50], [3, 30, 150]) == pytest.approx(1)
    assert slope([2, 4, 8], [5, 5, 5]) == pytest.approx(0)
    # Off the line: the least-squares slope through (0, 0), (1, 2), (2, 2) is 1.
    assert slope([1, math.e, math.e**2], [1, math.e**2, math.e**2]) == pytest.approx(1)


def test_growth_that_exceeds_the_prediction_is_marked():
    found = costs(made_up())
    by_place = {(one.label, one.workers, one.numel): one for one in growths(found)}
    assert len(by_place) == 8
    squared = by_place["slow", 2, None]
    assert squared.measured == pytest.approx(2)
    assert squared.predicted == pytest.approx(math.log10(0.322 / 0.034))
    assert squared.too_fast
    assert not squared.works_too_much, "its processor time is linear in the size"
    more = by_place["slow", None, 10**6]
    assert more.measured == pytest.approx(0)
    assert not more.too_fast
    assert more.cpu == pytest.approx(1)
    assert more.works_too_much
    for place in ((2, None), (4, None), (None, 10**6), (None, 10**7)):
        reference = by_place["all_reduce", *place]
        assert not reference.too_fast
        assert not reference.works_too_much
    text = markdown(found)
    assert "| slow | 1gbit | 2 workers | parameters | 2.00 | 0.98 | 1.00 | 1.00 | **time** |" in text
    assert "| slow | 1gbit | 1 million | workers | 0.00 | 0.56 | 1.00 | 0.58 | **CPU** |" in text


@pytest.mark.root
@pytest.mark.ranks
@pytest.mark.slow  # a crew of hosts stands in test_lab.py
def test_hosts_send_what_is_declared(tmp_path):
    records = []
    try:
        with crew(2, module="benchmarks.lab.scaling_worker") as hosts:
            scaling.measure(hosts, scaling.CONTENDERS, [300_000], ["1gbit"], 1, records.append)
    except NetworkUnavailableError as error:
        pytest.skip(str(error))
    assert len(records) == 1 + len(scaling.CONTENDERS)
    declared = {one["label"]: one["declared_bytes"] for one in records if one["numel"] > 1}
    assert declared["all_reduce"] == 4 * 300_000  # a ring of two sends as much as a message
    assert declared["relaxcomm bsp"] == pytest.approx(declared["all_reduce"], rel=0.01)
    assert declared["relaxcomm local_sgd, 8 bits"] == pytest.approx(300_000, rel=0.02)
    assert declared["relaxcomm local_sgd, sparse"] < 300_000 / 8
    for one in records:
        if one["numel"] > 1:
            assert one["bytes_sent"] == pytest.approx(one["declared_bytes"], rel=0.05, abs=8_000), one
    path = tmp_path / "scaling.jsonl"
    path.write_text("".join(json.dumps({"kind": "exchange", **one}) + "\n" for one in records))
    scaling_report.write(path)
    assert "| relaxcomm bsp | 1gbit | 2 | 0.3 |" in path.with_suffix(".md").read_text()
    assert path.with_suffix(".png").stat().st_size > 1000


def test_without_hosts_it_ends_in_a_line_and_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    output = tmp_path / "scaling.jsonl"
    monkeypatch.setattr(sys, "argv", ["scaling", "--output", str(output)])
    with pytest.raises(SystemExit, match=r"need root .*nothing was run"):
        scaling.main()
    assert not output.exists()

"""The throttle at the transport: its token bucket, a step over it on real ranks, and a crew without hosts."""

import sys
import time

import pytest
import torch
from torch import nn

import relaxcomm
from benchmarks.lab import __main__ as lab
from benchmarks.lab import network, report
from benchmarks.lab.crew import crew
from benchmarks.lab.network import BURST_BYTES
from benchmarks.lab.networks import usable
from benchmarks.lab.throttle import ThrottledTransport, TokenBucket, bytes_per_second
from benchmarks.lab.trial import Job
from relaxcomm.config import load
from relaxcomm.operations import AllReduce, Label
from tests.benchmarks.test_lab import MadeUpCrew
from tests.ranks import run_ranks

RANKS, STEPS = 3, 2
CONFIG = {"algorithm": "bsp", "bucket_bytes": 600_000}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_burst_passes_at_once_and_the_rest_at_the_rate():
    clock = Clock()
    bucket = TokenBucket("8mbit", clock)  # 1e6 bytes a second
    bucket.send(BURST_BYTES)
    assert bucket.passed_at == pytest.approx(100.0)
    bucket.send(500_000)
    assert bucket.passed_at == pytest.approx(100.5), "no tokens are left"
    clock.now = 100.6  # 0.1 s of tokens have come in since
    bucket.send(300_000)
    assert bucket.passed_at == pytest.approx(100.8)
    clock.now = 200.0  # full, and not more than full
    bucket.send(BURST_BYTES + 1_000_000)
    assert bucket.passed_at == pytest.approx(201.0)
    assert bucket.sent_bytes == 2 * BURST_BYTES + 1_800_000
    bucket.shape(None)
    bucket.send(10**12)
    assert bucket.passed_at <= clock.now


def test_rates_are_tcs_words():
    found = [bytes_per_second(rate) for rate in ("100mbit", "1gbit", "2.5kbit", None)]
    assert found == [12.5e6, 125e6, 312.5, float("inf")]
    with pytest.raises(ValueError, match="100Mb"):
        bytes_per_second("100Mb")


def model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(301, 499), nn.Tanh(), nn.Linear(499, 303))


def train(rank, throttled):
    """Seconds and bytes of some steps, the bucket's count, the number of buckets, and the parameters."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    link = TokenBucket()
    transport = ThrottledTransport(link, load(CONFIG)) if throttled else None
    with relaxcomm.attach(net, optimizer, CONFIG, process_group=transport) as engine:
        link.shape("20mbit")
        counted, sent = link.sent_bytes, engine.statistics["bytes_sent"]
        begin = time.perf_counter()
        for step in range(STEPS):
            draw = torch.Generator().manual_seed(100 * rank + step)
            net(torch.randn(4, 301, generator=draw)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - begin
        sent = engine.statistics["bytes_sent"] - sent
        counted = link.sent_bytes - counted
    return seconds, sent, counted, nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.mark.ranks
def test_a_step_takes_as_long_as_its_bytes_and_computes_the_same():
    numel = sum(parameter.numel() for parameter in model().parameters())
    bytes_sent = STEPS * 2 * (RANKS - 1) / RANKS * 4 * numel
    expected = (bytes_sent - BURST_BYTES) / 2.5e6
    assert expected > 1.0
    plain, held = (run_ranks(train, RANKS, throttled) for throttled in (False, True))
    for (quick, _, _, without), (seconds, sent, counted, parameters) in zip(plain, held, strict=True):
        assert expected <= seconds < 10 * (expected + quick)
        assert counted == sent == pytest.approx(bytes_sent, rel=0.01)
        assert torch.equal(parameters, without)


def poll(rank):
    """Whether a result was there at once, seconds of issuing, of waiting, and whether it was there after."""
    link = TokenBucket()
    transport = ThrottledTransport(link, load({**CONFIG, "timeout_seconds": 0.8}))  # of others, not of a link
    link.shape("20mbit")
    begin = time.perf_counter()
    big = transport.issue(AllReduce(torch.ones(600_001), "sum"), Label(0, "rule", 0))
    small = transport.issue(AllReduce(torch.ones(3), "sum"), Label(0, "rule", 1))
    issued = time.perf_counter() - begin
    while not small._pending.arrived():  # the bytes themselves
        time.sleep(0.001)
    early = big.arrived(), small.arrived()
    received = small.wait()
    waited = time.perf_counter() - begin
    late = big.arrived(), small.arrived()
    big.wait()
    transport.close()
    return early, late, issued, waited, received.tolist()


@pytest.mark.ranks
def test_only_waiting_takes_time_and_a_small_result_stands_behind_a_large_one():
    expected = (2 * 2 / 3 * 4 * 600_001 - BURST_BYTES) / 2.5e6
    for early, late, issued, waited, received in run_ranks(poll, RANKS):
        assert (early, late) == ((False, False), (True, True))
        assert issued < waited / 2
        assert expected <= waited < 10 * expected
        assert received == [3.0] * 3


@pytest.mark.ranks
def test_a_crew_without_hosts_is_marked_and_counts_what_its_ranks_sent():
    job = Job(
        workload="digits",
        contender="relaxcomm",
        settings={"algorithm": "bsp"},
        learning_rate=0.1,
        steps=4,
        every=2,
    )
    average = Job(workload="digits", contender="every_step", learning_rate=0.1, steps=2, every=0)
    with crew(RANKS, network="throttle") as ranks:
        quick, slow, mean = ranks.run(job, None), ranks.run(job, "100mbit"), ranks.run(average, "100mbit")
        with pytest.raises(RuntimeError, match="KeyError: 'ddp'"):
            ranks.run(Job(workload="digits", contender="ddp", learning_rate=0.1, steps=2), None)
    parameters = sum(a * b + b for a, b in ((64, 512), (512, 512), (512, 256), (256, 10)))
    step_bytes = 2 * (RANKS - 1) / RANKS * 4 * parameters
    for run, steps in ((quick, 4), (slow, 4), (mean, 2)):
        assert run["network"] == "throttled"
        assert run["bytes_sent"] == pytest.approx(RANKS * steps * step_bytes, rel=0.01)
    assert slow["seconds"] >= (4 * step_bytes - BURST_BYTES) / 12.5e6
    assert quick["points"][-1][3] == slow["points"][-1][3]
    assert mean["communication"]["average"] >= (step_bytes - BURST_BYTES) / 12.5e6


def test_where_no_hosts_can_be_made_ranks_are_throttled_and_a_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    assert usable("namespaces") == "throttle"
    (line,) = capsys.readouterr().err.splitlines()
    assert "need root" in line
    assert "throttled at the transport" in line
    assert usable("throttle") == "throttle"
    assert capsys.readouterr().err == ""


def test_a_run_without_hosts_leaves_out_rivals_and_is_marked(monkeypatch, tmp_path):
    """The whole command, with a crew that trains nothing."""
    out = tmp_path / "lab.jsonl"
    arguments = ["--network", "throttle", "--workloads", "digits", "--workers", "4", "--rates", "100mbit"]
    arguments += ["--seeds", "1", "--tuning-seeds", "1", "--learning-rates", "0.1", "--output", str(out)]
    monkeypatch.setattr(sys, "argv", ["lab", *arguments, "--entries", "ddp", "relaxcomm bsp"])
    monkeypatch.setattr(lab, "crew", MarkedCrew)
    lab.main()
    records = report.read(out)
    assert {record["network"] for record in records} == {"throttled"}
    assert "torch.distributed" in records[0]["cannot"]["ddp"]
    assert {record.get("label") for record in records} == {None, "nothing", "relaxcomm bsp"}
    assert [one["steps"] for one in records if one["kind"] == "tuned"] == [80], "its own steps, without ddp's"
    title = "### digits, 4 workers, 100mbit (throttled at the transport, not a network)"
    assert title in out.with_suffix(".md").read_text()


class MarkedCrew(MadeUpCrew):
    network = "throttled"

    def __init__(self, workers, network):
        assert (workers, network) == (4, "throttle")
        super().__init__()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, job, rate):
        return {**super().run(job, rate), "network": self.network}

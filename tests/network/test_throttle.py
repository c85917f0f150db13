"""A simulated link: how it is written, its token buckets, and real ranks that wait for it."""

import math
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import ConfigError
from relaxcomm.network import Link, Throttle, ThrottledTransport, parse_link, parse_rate
from relaxcomm.network.operations import AllReduce, Broadcast, Label, Request
from tests.models import take_step
from tests.network.memoryless import Memoryless
from tests.ranks import run_ranks

RANKS, STEPS = 3, 2
CONFIG = {"algorithm": "bsp", "bucket_bytes": 600_000}
SLOW = Link(bytes_per_second=2.5e6)  # 20 Mbit/s
LATENCY = 0.15
FAR = Link(bytes_per_second=2.5e6, latency_seconds=LATENCY)


@pytest.mark.parametrize(
    ("text", "link", "words"),
    [
        ("100mbit", Link(0.0, 12.5e6), "100 Mbit/s"),
        ("1gbit", Link(0.0, 125e6), "1 Gbit/s"),
        ("100mbit,5ms", Link(0.005, 12.5e6), "100 Mbit/s, 5 ms"),
        (" 2.5kbit , 500us ", Link(0.0005, 312.5), "2.5 kbit/s, 500 us"),
        ("1Gbit,1s", Link(1.0, 125e6), "1 Gbit/s, 1 s"),
        ("10mbit,0ms", Link(0.0, 1.25e6), "10 Mbit/s"),
        ("10mbit,0ms,32kb", Link(0.0, 1.25e6, 32768), "10 Mbit/s, 32 KiB at once"),
        ("10mbit, 5ms, 1.5mb", Link(0.005, 1.25e6, 1572864), "10 Mbit/s, 5 ms, 1.5 MiB at once"),
    ],
)
def test_links_are_written_as_tc_writes_them(text, link, words):
    found = parse_link(text)
    assert found.words == words
    assert found.bytes_per_second == pytest.approx(link.bytes_per_second)
    assert found.latency_seconds == pytest.approx(link.latency_seconds)
    assert found.burst_bytes == link.burst_bytes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "100Mb",
            "a rate is a number of kbit, mbit, gbit, such as \"100mbit\"; got '100Mb'; did you mean",
        ),
        ("100mbit,5m", r"got '5m'; did you mean '5ms'"),
        ("100", "a rate is a number of"),
        ("", "a rate is a number of"),
        ("5ms", "a rate is a number of"),
        ("1.2.3mbit", "a rate is a number of"),
        ("0mbit", "a rate is above 0"),
        ("100mbit,", "a latency is a number of us, ms, s, such as \"5ms\"; got ''"),
        ("100mbit,5", "a latency is a number of"),
        ("100mbit,5ms,6ms", "a burst is a number of b, kb, mb, such as \"256kb\"; got '6ms'"),
        ("100mbit,5ms,6kb,1", "a burst is a number of"),
        ("100mbit,-5ms", "a latency is a number of"),
        ("9" * 400 + "mbit", "a rate of '999.* is more than a number can hold"),
    ],
)
def test_links_that_are_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_link(text)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_burst_passes_at_once_and_the_rest_at_the_rate():
    clock = Clock()
    link = Throttle(Link(bytes_per_second=parse_rate("8mbit"), burst_bytes=250_000), clock=clock)
    link.move(250_000, 0)
    assert link.passed_at == pytest.approx(100.0)
    link.move(500_000, 0)
    assert link.passed_at == pytest.approx(100.5), "no tokens are left"
    clock.now = 100.6  # 0.1 s of tokens have come in since
    link.move(300_000, 0)
    assert link.passed_at == pytest.approx(100.8)
    clock.now = 200.0  # full, and not more than full
    link.move(1_250_000, 0)
    assert link.passed_at == pytest.approx(201.0)
    assert link.sent_bytes == 250_000 + 500_000 + 300_000 + 1_250_000
    link.shape(Link())
    link.move(10**12, 10**12)
    assert link.passed_at <= clock.now


def test_a_link_sends_and_receives_at_once():
    clock = Clock()
    link = Throttle(SLOW, clock=clock)
    link.move(2_500_000, 1_250_000)
    assert link.passed_at == pytest.approx(101.0)
    link.move(0, 2_500_000)
    assert link.passed_at == pytest.approx(101.5), "what comes in queues behind what came in"
    link.move(0, 0)
    assert link.passed_at == pytest.approx(101.5)


def throttled(link: Link, clock=time.perf_counter, **settings):
    throttle = Throttle(link, clock)
    settings = {"timeout_seconds": 30.0, **settings}
    device = torch.device("cpu")
    return throttle, ThrottledTransport(throttle, device=device, backend="gloo", debug=False, **settings)


def timed(rank):
    """Seconds of an all-reduce, of a broadcast and of a small message, twice."""
    _, transport = throttled(FAR)
    tries = []
    for _ in range(2):
        seconds = []
        for operation in (
            AllReduce(torch.ones(234_375), "sum"),
            Broadcast(torch.ones(156_250), 0),
            AllReduce(torch.ones(3), "sum"),
        ):
            transport.meet("begin together")
            begin = time.perf_counter()
            transport.issue(operation, Label(0, "rule", 0)).wait()
            seconds.append(time.perf_counter() - begin)
        tries.append(seconds)
    transport.close()
    return tries


@pytest.mark.slow
@pytest.mark.ranks
def test_an_operation_takes_its_bytes_over_the_rate_and_the_latency():
    """Never less and at most 1 s more, of which an idle machine takes some milliseconds."""
    ring = 2 * (RANKS - 1) / RANKS * 4 * 234_375 / 2.5e6  # 0.5 s
    tree = 4 * 156_250 / 2.5e6  # 0.25 s for whoever receives, twice that for the root, which sends to both
    for rank, tries in enumerate(run_ranks(timed, RANKS)):
        sizes = (ring, 2 * tree if rank == 0 else tree, 0.0)
        for index, (own, in_turn) in enumerate(zip(sizes, (4, 2, 4), strict=True)):
            least = min(seconds[index] for seconds in tries)
            latency = in_turn * LATENCY  # of a ring of three, and of a tree
            assert own + latency <= least <= own + latency + 1.0


class Echo(Memoryless):
    def answer(self, client, request):
        return [(client, request.view(torch.float32).clone())]


def ask(rank):
    """Seconds until the other ranks' answers are there."""
    _, transport = throttled(FAR)
    row = torch.zeros(312_500)
    transport.serve(("rule", 0), Echo(), row, row)
    asked = tuple(other for other in range(RANKS) if other != rank)
    request = Request(torch.ones(2, 312_500), torch.empty(2, 312_500), asked)
    begin = time.perf_counter()
    received = transport.issue(request, Label(0, "rule", 0)).wait()
    seconds = time.perf_counter() - begin
    transport.leave()
    transport.close()
    return seconds, float(received.sum())


@pytest.mark.ranks
def test_a_servers_answer_comes_after_the_way_there_and_back():
    for seconds, total in run_ranks(ask, RANKS):
        assert seconds >= 2 * 4 * 312_500 / 2.5e6 + 2 * LATENCY
        assert total == 2 * 312_500


def model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(301, 499), nn.Tanh(), nn.Linear(499, 303))


def train(rank, slow):
    """Seconds and bytes of some steps, the link's count, and the parameters."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    link, transport = throttled(Link()) if slow else (Throttle(), None)
    with relaxcomm.attach(net, optimizer, CONFIG, process_group=transport) as engine:
        link.shape(SLOW)
        counted, sent = link.sent_bytes, engine.statistics["bytes_sent"]
        begin = time.perf_counter()
        for step in range(STEPS):
            draw = torch.Generator().manual_seed(100 * rank + step)
            take_step(net(torch.randn(4, 301, generator=draw)).square().mean(), optimizer)
        seconds = time.perf_counter() - begin
        sent = engine.statistics["bytes_sent"] - sent
        counted = link.sent_bytes - counted
    return seconds, sent, counted, nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.mark.ranks
def test_a_step_takes_as_long_as_its_bytes_and_computes_the_same():
    numel = sum(parameter.numel() for parameter in model().parameters())
    bytes_sent = STEPS * 2 * (RANKS - 1) / RANKS * 4 * numel
    expected = bytes_sent / 2.5e6
    assert expected > 1.0
    plain, held = (run_ranks(train, RANKS, slow) for slow in (False, True))
    for (quick, _, _, without), (seconds, sent, counted, parameters) in zip(plain, held, strict=True):
        assert expected <= seconds < 10 * (expected + quick)
        assert counted == sent == pytest.approx(bytes_sent, rel=0.01)
        assert torch.equal(parameters, without)


def poll(rank):
    """Whether results were there at once and after a wait, what was waited, and how often before it."""
    clock, slept = Clock(), []

    def sleep(seconds):
        slept.append(seconds)
        clock.now += seconds

    _, transport = throttled(SLOW, clock)
    with mock.patch("relaxcomm.network.throttle.time", SimpleNamespace(sleep=sleep)):
        transport.meet("begin together")
        big = transport.issue(AllReduce(torch.ones(600_001), "sum"), Label(0, "rule", 0))
        small = transport.issue(AllReduce(torch.ones(3), "sum"), Label(0, "rule", 1))
        while not (big._pending.arrived() and small._pending.arrived()):  # the bytes themselves
            time.sleep(0.001)
        transport._waiting.seconds = 0.0  # for others, not for a link
        before, early = len(slept), (big.arrived(), small.arrived())
        received = small.wait()
        late = big.arrived(), small.arrived()
        big.wait()
    transport.close()
    return before, early, late, slept, received.tolist()


@pytest.mark.ranks
def test_only_waiting_takes_time_and_a_small_result_stands_behind_a_large_one():
    expected = 2 * 2 / 3 * 4 * 600_004 / 2.5e6
    for before, early, late, slept, received in run_ranks(poll, RANKS):
        assert (before, early, late) == (0, (False, False), (True, True))
        assert slept == pytest.approx([expected, 0.0], rel=1e-4)
        assert received == [3.0] * 3


def test_a_link_without_a_rate_holds_nothing_back():
    assert Link().bytes_per_second == math.inf
    link = Throttle()
    link.move(10**12, 0)
    assert link.passed_at <= link.clock()

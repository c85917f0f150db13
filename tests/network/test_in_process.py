"""The scheduler: virtual time, determinism, and errors in place of hangs."""

import threading
from collections import Counter

import pytest
import torch

from relaxcomm import CommunicationError, ConfigError, DeadlockError, Link, UsageError, simulate
from relaxcomm.network.operations import AllReduce, Label, Neighbors, Request
from tests.network.memoryless import Memoryless


def reduce(group, step=0, size=1):
    return group.transport().issue(AllReduce(torch.ones(size), "sum"), Label(step, "0")).wait()


def test_virtual_time_is_the_last_arrival_plus_latencies_and_bytes():
    def rank(group):
        group.sleep(float(group.rank()))
        reduce(group, size=3000)
        return group.time()

    times = simulate(rank, 3, link=Link(latency_seconds=0.5, bytes_per_second=16000))
    assert times == [2 + 4 * 0.5 + 1.0] * 3  # a ring's 4 messages, 2 (3 - 1) / 3 of 12000 bytes


def test_what_happens_while_its_clock_is_stopped_takes_a_rank_no_time():
    def rank(group):
        group.sleep(float(group.rank()))
        with group.stopped_clock():
            reduce(group, size=3000)
        stopped = group.time()
        reduce(group, 1, size=3000)
        return stopped, group.time()

    times = simulate(rank, 3, link=Link(bytes_per_second=16000))
    assert times == [(0.0, 3.0), (1.0, 3.0), (2.0, 3.0)]


def test_the_same_program_runs_the_same_way():
    def run():
        seen = []

        def rank(group):
            for step in range(5):
                seen.append((group.rank(), step))
                reduce(group, step)

        simulate(rank, 3)
        return seen

    assert run() == run()


def test_a_rank_that_left_is_a_deadlock_that_names_it():
    with pytest.raises(DeadlockError, match=r"waits for ranks \[2\].*rank 2 has finished"):
        simulate(lambda group: None if group.rank() == 2 else reduce(group), 3)


def test_other_places_are_an_error_that_names_both():
    with pytest.raises(
        CommunicationError, match=r"issues .*step 1.*rank 0 issued .*step 0.*; all must call the same"
    ):
        simulate(lambda group: reduce(group, group.rank()), 3)


@pytest.mark.parametrize("late", [1, 2])
def test_a_neighbor_that_sends_nothing_is_an_error_that_names_it(late):
    """Whether it posts before who waits for it, or later."""

    def rank(group):
        group.sleep(float(group.rank() == late))
        peer = {0: 1, 1: 2, 2: 1}[group.rank()]
        operation = Neighbors({peer: torch.ones(1)}, {peer: torch.empty(1)})
        group.transport().issue(operation, Label(0, "0")).wait()

    with pytest.raises(CommunicationError, match=r"step 0.*: rank 0 waits for rank 1, which sent it nothing"):
        simulate(rank, 3)


def test_the_first_error_is_raised_and_not_its_consequences():
    def rank(group):
        if group.rank() == 1:
            raise ValueError("mine")
        reduce(group)

    with pytest.raises(ValueError, match="mine"):
        simulate(rank, 3)


def test_a_slow_rank_holds_up_its_neighbors_alone():
    """On a line 0 - 1 - 2 - 3, rank 3 computes for 9 s: after one exchange only rank 2 waited for it."""

    def line(group):
        transport, me = group.transport(), group.rank()
        if me == 3:
            group.sleep(9)
        peers = [peer for peer in (me - 1, me + 1) if 0 <= peer < 4]
        message = torch.full((2,), float(me))
        operation = Neighbors(dict.fromkeys(peers, message), {peer: torch.empty(2) for peer in peers})
        received = transport.issue(operation, Label(0, "gossip")).wait()
        return group.time(), {peer: tensor.tolist() for peer, tensor in received.items()}

    found = simulate(line, 4, link=Link(latency_seconds=1))
    assert [time for time, _ in found] == [1, 1, 10, 10]
    assert found[2][1] == {1: [1.0, 1.0], 3: [3.0, 3.0]}


def test_who_sends_nothing_waits_for_no_link():
    def rank(group):
        sends = {1: torch.ones(10)} if group.rank() == 0 else {}
        receives = {0: torch.empty(10)} if group.rank() == 1 else {}
        group.transport().issue(Neighbors(sends, receives), Label(0, "0")).wait()
        return group.time()

    assert simulate(rank, 3, link=Link(latency_seconds=1.0)) == [1.0, 1.0, 0.0]


def test_a_slow_neighbor_hears_what_was_sent_and_not_what_its_sender_has_made_of_it_since():
    """On a ring of 4, rank 0 has heard both neighbours and goes on before rank 2 has posted to them."""

    def ring(group):
        me, message = group.rank(), torch.full((2,), float(group.rank()))
        group.sleep(9.0 * (me == 2))
        beside = [(me - 1) % 4, (me + 1) % 4]
        operation = Neighbors(dict.fromkeys(beside, message), {peer: torch.empty(2) for peer in beside})
        received = group.transport().issue(operation, Label(0, "gossip")).wait()
        message.fill_(100.0)
        for tensor in received.values():
            tensor += 0.5  # is this rank's alone, though its neighbour has sent one tensor to two
        return {peer: tensor.tolist() for peer, tensor in received.items()}

    found = simulate(ring, 4)
    assert found == [{peer: [peer + 0.5] * 2 for peer in ((me - 1) % 4, (me + 1) % 4)} for me in range(4)]


class Echo(Memoryless):
    """Answers at once, and notes when."""

    def __init__(self):
        self.heard = []

    def answer(self, client, request):
        self.heard.append((client, self.now()))
        return [(client, request.clone())]


def asked(group, transport, server):
    rows = torch.zeros(1, 1000, dtype=torch.uint8)
    return transport.issue(Request(rows, rows.clone(), (server,)), Label(0, "0"))


def test_answers_leave_over_the_link_of_who_gives_them():
    """Two that ask rank 0 at once wait for both answers to pass its link; what it asks itself goes on."""

    def rank(group):
        transport, echo = group.transport(), Echo()
        blank = torch.zeros(1000, dtype=torch.uint8)
        transport.serve(("0", 0), echo, blank, blank.clone())
        begin = group.time()
        asked(group, transport, server=1 if group.rank() == 0 else 0).wait()
        taken = group.time() - begin
        transport.leave()
        return round(taken, 6), [(client, round(when - begin, 6)) for client, when in echo.heard]

    found = simulate(rank, 3, link=Link(latency_seconds=0.5, bytes_per_second=1000))
    assert found[0] == (3.0, [(1, 1.5), (2, 1.5)])  # rank 1 answers, whose link is free by then
    assert sorted(taken for taken, _ in found[1:]) == [3.0, 4.0]


def test_requests_are_answered_in_the_order_in_which_they_arrive():
    def rank(group):
        transport, echo = group.transport(), Echo()
        blank = torch.zeros(1000, dtype=torch.uint8)
        transport.serve(("0", 0), echo, blank, blank.clone())
        first = asked(group, transport, 2) if group.rank() == 1 else None  # before what goes to rank 0
        group.sleep(0.5)
        if group.rank():
            asked(group, transport, 0).wait()
        if first is not None:
            first.wait()
        transport.leave()
        return [client for client, _ in echo.heard]

    assert simulate(rank, 3, link=Link(bytes_per_second=1000))[0] == [2, 1]


def test_what_a_rank_sends_later_holds_up_no_answer_of_its_service():
    """Rank 0 or 1 computes for long, and then reduces; the other has asked it long before."""

    def rank(group, slow):
        transport, blank = group.transport(), torch.zeros(1000, dtype=torch.uint8)
        transport.serve(("0", 0), Echo(), blank, blank.clone())
        begin, answered = group.time(), None
        if group.rank() == slow:
            group.sleep(100.0)
        else:
            asked(group, transport, slow).wait()
            answered = group.time() - begin
        reduce(group, size=1000)
        transport.leave()
        return answered

    link = Link(latency_seconds=0.5, bytes_per_second=1000)
    found = [simulate(lambda group, slow=slow: rank(group, slow), 2, link=link) for slow in (0, 1)]
    assert found == [[None, pytest.approx(3.0)], [pytest.approx(3.0), None]]


class Gathering(Echo):
    """Answers all when all have asked."""

    def answer(self, client, request):
        self.heard.append(client)
        return [(one, request) for one in range(3)] if len(self.heard) == 3 else []


@pytest.mark.parametrize("service", [Gathering, Echo], ids=["once all have asked", "each that asks at once"])
def test_servers_that_answer_all_at_once_begin_with_different_clients(service):
    def rank(group):
        transport, blank = group.transport(), torch.zeros(1000, dtype=torch.uint8)
        transport.serve(("0", 0), service(), blank, blank.clone())
        begin, rows = group.time(), torch.zeros(3, 1000, dtype=torch.uint8)
        transport.issue(Request(rows, rows.clone()), Label(0, "0")).wait()
        taken = group.time() - begin
        transport.leave()
        return taken

    # Two requests of a second each, and two answers beside those of the others.
    assert simulate(rank, 3, link=Link(latency_seconds=0.5, bytes_per_second=1000)) == [5.0] * 3


def test_where_ranks_serve_who_is_ahead_waits_in_an_evaluation_for_the_others():
    """What it asks then is answered by those who are there, over links that are free."""

    def rank(group):
        transport, blank = group.transport(), torch.zeros(1000, dtype=torch.uint8)
        transport.serve(("0", 0), echo := Echo(), blank, blank.clone())
        group.sleep(10.0 * group.rank())
        asked(group, transport, server=1).wait()
        begin, heard = group.time(), len(echo.heard)
        with group.stopped_clock():
            reduce(group, size=3000)
        waited, begin = group.time() - begin, group.time()
        asked(group, transport, server=2).wait()
        taken = group.time() - begin
        transport.leave()
        return round(waited, 6), round(taken, 6), heard

    found = simulate(rank, 3, link=Link(bytes_per_second=1000))
    assert [waited for waited, *_ in found] == [20.0, 12.0, 0.0]
    assert sorted(taken for _, taken, _ in found) == [0.0, 2.0, 3.0]  # of rank 2, and of those behind it


class Noting(Echo):
    """Keeps in which order it is asked and left."""

    def answer(self, client, request):
        self.heard.append((client, "asks"))
        return [(client, request)]

    def leave(self, client):
        self.heard.append((client, "leaves"))
        return []


def test_a_goodbye_comes_behind_what_was_asked():
    def rank(group):
        transport, service = group.transport(), Noting()
        transport.serve(("0", 0), service, blank := torch.zeros(1000, dtype=torch.uint8), blank.clone())
        group.sleep(2.0 * group.rank())
        asked(group, transport, server=0)
        transport.leave()
        return [one for one in service.heard if one[0] == 1], len(service.heard)

    found = simulate(rank, 3, link=Link(bytes_per_second=1000))
    assert found == [([(1, "asks"), (1, "leaves")], 6), ([(1, "leaves")], 3), ([(1, "leaves")], 3)]


class Failing(Echo):
    """Raises something in one of its methods, or has it raised by an answer that does not fit."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def fail(self, where):
        if where == self.where:
            raise ValueError("nothing works")
        return []

    def answer(self, client, request):
        self.fail("answer")
        return [(client, request[:3] if self.where == "reply" else request)]

    def due(self):
        return 1.0 if self.where == "expire" else None

    def expire(self):
        return self.fail("expire")

    def leave(self, client):
        return self.fail("leave")


def ask_in_a_ring(group, service):
    """Rank 0 asks rank 1 as the only one."""
    transport, blank = group.transport(), torch.zeros(1000, dtype=torch.uint8)
    transport.serve(("0", 0), service, blank, blank)
    for _ in range(20):
        group.sleep(0.1)
        asked(group, transport, (1, 2, 0)[group.rank()]).wait()
    transport.leave()


@pytest.mark.parametrize("where", ["answer", "reply", "expire", "leave"])
def test_a_service_that_fails_is_an_error_on_every_rank(where):
    words = "^the service of rank 1 for rule 0, unit 0 has failed: (ValueError: nothing works$|RuntimeError)"

    def rank(group):
        with pytest.raises(CommunicationError, match=words) as told:
            ask_in_a_ring(group, Failing(where if group.rank() == 1 else None))
        return isinstance(told.value.__cause__, ValueError | RuntimeError)

    assert simulate(rank, 3) == [True] * 3


def test_one_rank_may_be_on_any_device_and_several_may_not():
    """A device without memory stands for a GPU."""

    def rank(group):
        row = torch.ones(3, device="meta")
        return group.transport().issue(AllReduce(row, "mean"), Label(0, "0")).wait().device.type

    assert simulate(rank, 1) == ["meta"]
    with pytest.raises(CommunicationError, match="CPU only, got meta"):
        simulate(rank, 2)


def rounds(group):
    """Three exchanges with the neighbours on a ring, and three of all."""
    rank, size = group.rank(), group.size()
    beside = [(rank - 1) % size, (rank + 1) % size]
    transport = group.transport()
    for step in range(3):
        sends = {peer: torch.ones(1) for peer in beside}
        operation = Neighbors(sends, {peer: torch.empty(1) for peer in beside})
        assert transport.issue(operation, Label(step, "0")).wait().keys() == set(beside)
        total = transport.issue(AllReduce(torch.ones(1), "sum"), Label(step, "1")).wait()
        assert total.item() == size
        transport.meet("event", step)


def calls_per_rank(size):
    """Of functions, while so many ranks exchange."""
    calls = Counter()

    def see(frame, event, argument):
        calls[event] += event in ("call", "c_call")

    threading.setprofile(see)
    try:
        simulate(rounds, size)
    finally:
        threading.setprofile(None)
    return calls.total() / size


def test_a_rank_costs_the_scheduler_no_more_among_many():
    """None looks at all others for each operation: that made an exchange of all cost N^2."""
    assert calls_per_rank(96) < 1.3 * calls_per_rank(24)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("latency_seconds", -1, "a finite number, 0 or more"),
        ("latency_seconds", float("nan"), "a finite number, 0 or more"),
        ("latency_seconds", "5ms", 'a finite number, 0 or more; .* in words, such as "100mbit,5ms"'),
        ("burst_bytes", float("inf"), "a finite number, 0 or more"),
        ("bytes_per_second", 0, "a number above 0"),
        ("bytes_per_second", float("nan"), "a number above 0"),
        ("bytes_per_second", True, "a number above 0"),
    ],
)
def test_a_link_that_cannot_be(name, value, allowed):
    with pytest.raises(ConfigError, match=f"Link: {name} = .* is not allowed: write {allowed}"):
        Link(**{name: value})


@pytest.mark.parametrize("link", ["100mbit,5ms", 12.5e6])
def test_what_is_no_link_is_refused_at_once(link):
    with pytest.raises(UsageError, match=r"is no link; give one, such as Link\("):
        simulate(lambda group: group.rank(), 2, link=link)

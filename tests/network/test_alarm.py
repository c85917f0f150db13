"""Services that are called at a time: on the clock of a simulation, and on the machine's."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from relaxcomm import DeadlockError, Link, simulate
from relaxcomm.network import TorchTransport, virtual_time
from relaxcomm.network.alarm import Alarm
from relaxcomm.network.operations import Label, Request
from tests.engine.harness import on_gloo
from tests.network.memoryless import Memoryless
from tests.waiting import until

PLACE = ("0", 0)
ROW = torch.zeros(1, dtype=torch.int64)


class Patient(Memoryless):
    """Answers all that have asked some seconds after enough of them have."""

    def __init__(self, seconds, *, enough=1):
        self.seconds, self.enough, self.waiting, self.begin = seconds, enough, [], 0.0

    def answer(self, client, request):
        self.waiting.append(client)
        self.begin = self.now() if len(self.waiting) == self.enough else self.begin
        return []

    def due(self):
        return self.begin + self.seconds if len(self.waiting) >= self.enough else None

    def expire(self):
        answered, self.waiting = self.waiting, []
        return [(client, torch.tensor([len(answered)])) for client in answered]


class Beating(Patient):
    """Rings every so many seconds, whoever is there; answers whenever enough have asked."""

    def __init__(self, seconds, *, enough=1):
        super().__init__(seconds, enough=enough)
        self.beats, self.first = 0, None

    def due(self):
        self.first = self.now() + self.seconds if self.first is None else self.first
        return self.first + self.seconds * self.beats

    def expire(self):
        self.beats += 1
        return super().expire() if len(self.waiting) >= self.enough else []


def ask(transport, step):
    request = Request(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64), ranks=(0,))
    return transport.issue(request, Label(step, *PLACE)).wait().item()


def serve(transport, seconds):
    transport.serve(PLACE, Patient(seconds), ROW, ROW)


def test_in_virtual_time_it_is_called_when_it_is_due():
    def rank(group):
        transport, found = group.transport(), []
        serve(transport, 2.0)
        for step in range(2):
            group.sleep((1.0, 1.5, 4.0)[group.rank()])
            found.append((ask(transport, step), group.time()))
        transport.leave()
        return found

    # A request takes half a second, and an answer, but a rank's own to itself; the beginning a second.
    found = simulate(rank, 3, link=Link(latency_seconds=0.5))
    assert found[0] == [(2, 4.0), (3, 7.0)]
    assert found[1] == [(2, 4.5), (3, 7.5)]
    assert found[2] == [(3, 7.5), (1, 14.5)]


def test_one_that_rings_again_and_again_rings_no_more_when_all_have_left():
    def rank(group):
        transport, service = group.transport(), Beating(1.0)
        transport.serve(PLACE, service, ROW, ROW)
        group.sleep(10.2)
        ask(transport, 0)
        transport.leave()
        group.sleep(100.0)
        transport.meet("the end")
        return service.beats

    assert simulate(rank, 3) == [11, 10, 10]  # goodbyes of second 11 go before the alarms


def test_one_that_rings_again_and_again_may_do_so_while_something_is_on_its_way(monkeypatch):
    monkeypatch.setattr(virtual_time, "_MOST_ALARMS", 20)

    def rank(group):
        transport = group.transport()
        transport.serve(PLACE, Beating(1.0, enough=2), ROW, ROW)  # a message takes until 100
        group.sleep(group.rank() * 100.5)
        ask(transport, 0)  # rank 1's is there at 300.5
        return group.time()

    assert simulate(rank, 2, link=Link(latency_seconds=100.0)) == [301.0, 401.0]


@pytest.mark.parametrize("rings", [Beating(1.0, enough=3), Beating(0.0, enough=3)], ids=["beats", "stands"])
def test_one_that_rings_again_and_again_and_answers_nobody_ends_no_simulation(rings):
    def rank(group):
        transport = group.transport()
        transport.serve(PLACE, rings, ROW, ROW)
        if group.rank():
            with pytest.raises(DeadlockError, match="rank 1 waits at step 0"):
                ask(transport, 0)
        else:
            with pytest.raises(DeadlockError, match="rank 0 waits at the end"):
                transport.meet("the end")

    simulate(rank, 2)


def test_one_that_rings_again_and_again_hides_no_error():
    def rank(group):
        group.transport().serve(PLACE, Beating(1.0), ROW, ROW)
        if group.rank():
            raise ValueError("mine")
        group.transport().meet("the end")

    with pytest.raises(ValueError, match=r"^mine$"):
        simulate(rank, 3)


def timers():
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def on_the_machine(world, service):
    device = torch.device("cpu")
    transport = TorchTransport.of(None, device=device, backend="gloo", timeout_seconds=20, debug=False)
    transport.serve(PLACE, service, ROW, ROW)
    transport.meet("all serve")
    time.sleep(0.05 * world.rank)
    begin = time.monotonic()
    answered = ask(transport, 0)
    took = time.monotonic() - begin
    transport.leave()
    left = [timer.name for timer in timers() if not timer.finished.is_set()]
    transport.close()
    return answered, took, left


@pytest.mark.ranks
@pytest.mark.parametrize("service", [Patient(0.3, enough=2), Beating(0.3, enough=2)], ids=["once", "again"])
def test_on_gloo_it_is_called_when_it_is_due(service):
    for answered, took, left in on_gloo(on_the_machine, 2, service):
        assert answered == 2
        assert took > 0.15
        assert not left


def test_an_alarm_rings_at_the_time_that_was_set_last():
    rung, has_rung, others = [], threading.Event(), timers()
    alarm = Alarm(time.monotonic, lambda due: (rung.append(due), has_rung.set()))
    later, second = time.monotonic() + 1000, time.monotonic() + 0.05
    alarm.set(later)
    alarm.set(second)
    alarm.set(second)
    assert has_rung.wait(60)
    alarm.set(later)
    alarm.set(None)
    until(lambda: set(timers()) <= set(others), "the end of all that could ring")
    assert rung == [second]

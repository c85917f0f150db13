"""A shard of `quorum_average`: who is waited for, what a report weighs, what becomes of late ones."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.plugin import Bucket, Context, Item, Membership
from relaxcomm.primitives import average, cast, identity, nesterov, quorum_average
from relaxcomm.primitives.exchanges.parameter_server import HEADER_BYTES, header, read_header

NUMEL, CLIENTS = 5, 4
REST = torch.cat([header(0, 0), torch.zeros(4 * NUMEL, dtype=torch.uint8)])


class Shard:
    """A rank's shard, which holds everything, on a clock that is set by hand."""

    def __init__(self, quorum, grace_seconds, outer=None, coder=None, clients=CLIENTS):
        bucket = Bucket(0, [Item("a", torch.zeros(NUMEL * clients))])
        cx = Context(step=0, start=0, membership=Membership(0, clients), learning_rate=lambda bucket: 0.1)
        exchange = quorum_average(quorum=quorum, grace_seconds=grace_seconds)
        self.service = exchange.serve(cx, bucket, coder or identity(), outer or average()).service
        self.time = 0.0
        self.service.now = lambda: self.time

    def push(self, client, samples, value, dtype=torch.float32):
        delta = torch.full((NUMEL,), value, dtype=dtype)
        return self.read(
            self.service.answer(client, torch.cat([header(samples, 0), delta.view(torch.uint8)]))
        )

    def rest(self, client):
        return self.read(self.service.answer(client, REST))

    @staticmethod
    def read(answers):
        """Who is answered, with how many contributors and which value."""
        return {
            client: (read_header(reply)[0], round(reply[HEADER_BYTES:].view(torch.float32)[0].item(), 4))
            for client, reply in answers
        }


def test_a_quorum_moves_the_model_by_samples():
    shard = Shard(quorum=2, grace_seconds=0.0)
    assert shard.push(1, 30, -1.0) == {}
    assert shard.push(3, 10, -5.0) == {1: (2, 2.0), 3: (2, 2.0)}


def test_late_ones_are_in_the_next_move_with_their_own_weight():
    shard = Shard(quorum=2, grace_seconds=0.0)
    shard.push(0, 8, -1.0)
    shard.push(1, 8, -1.0)
    assert shard.push(2, 24, -3.0) == {}
    assert shard.push(0, 8, -7.0) == {0: (2, 1.0 + 4.0), 2: (2, 1.0 + 4.0)}


def test_the_grace_begins_with_the_quorum_and_ends_when_nobody_is_left():
    shard = Shard(quorum=2, grace_seconds=3.0)
    shard.push(0, 1, -1.0)
    shard.time = 5.0
    shard.push(1, 1, -2.0)
    assert shard.service.due() == 8.0
    shard.time = 7.0
    assert shard.push(2, 1, -3.0) == {}
    assert shard.service.due() == 8.0  # from the quorum on, whoever comes
    assert shard.read(shard.service.expire()) == dict.fromkeys((0, 1, 2), (3, 2.0))
    assert shard.service.due() is None
    for client in (0, 1, 2):
        assert shard.push(client, 1, 0.0) == {}
    assert len(shard.push(3, 1, 0.0)) == 4  # all have, before the time
    assert shard.service.due() is None


def test_nobody_waits_for_those_who_have_left_or_rest():
    shard = Shard(quorum=4, grace_seconds=3.0)
    assert shard.read(shard.service.leave(3)) == {}
    assert shard.rest(2) == {2: (0, 0.0)}
    assert shard.push(0, 1, -1.0) == {}
    assert shard.push(1, 1, -3.0) == {0: (2, 2.0), 1: (2, 2.0)}
    shard.push(0, 1, -2.0)
    assert shard.rest(1) == {1: (0, 2.0), 0: (1, 4.0)}  # the last that was waited for


def test_when_all_have_rested_all_are_waited_for_again():
    shard = Shard(quorum=4, grace_seconds=0.0)
    for client in range(CLIENTS):
        shard.rest(client)
    for client in range(CLIENTS - 1):
        assert shard.push(client, 1, -1.0) == {}
    assert len(shard.push(3, 1, -1.0)) == CLIENTS


@pytest.mark.parametrize(("clients", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_more_than_half_are_a_quorum_unless_given(clients, quorum):
    shard = Shard(quorum=None, grace_seconds=1.0, clients=clients)
    for client in range(quorum - 1):
        shard.push(client, 1, 0.0)
        assert shard.service.due() != 1.0
    answered = shard.push(quorum - 1, 1, 0.0)
    assert bool(answered) if clients == quorum else shard.service.due() == 1.0


def test_of_what_is_not_finite_nothing_is_kept():
    """A report too large for float16: its sender learns it from the answer, and is still waited for."""
    shard = Shard(quorum=2, grace_seconds=0.0, coder=cast(dtype="float16"))
    (value,) = (value for _, value in shard.push(0, 1, float("inf"), torch.float16).values())
    assert value != value
    assert shard.push(1, 1, -1.0, torch.float16) == {}
    assert shard.push(0, 1, -1.0, torch.float16) == {0: (2, 1.0), 1: (2, 1.0)}


def test_its_state_is_the_model_and_the_outers():
    one, other = (Shard(quorum=1, grace_seconds=0.0, outer=nesterov(lr=0.5, momentum=0.9)) for _ in range(2))
    one.push(0, 4, -1.0)
    saved = one.service.export()
    assert saved.keys() == {"values", "outer.momentum"}
    other.service.restore(saved)
    assert one.push(2, 4, -1.0) == other.push(2, 4, -1.0)
    assert torch.equal(saved["outer.momentum"], torch.full((NUMEL,), -1.0))  # a copy


def test_who_waits_for_another_shard_or_has_stopped_is_waited_for_twice_as_long_as_one_has_taken():
    shard = Shard(quorum=3, grace_seconds=1.0)
    assert shard.service.due() is None  # the beginning
    shard.time = 8.0
    for client in (0, 1, 2):
        shard.push(client, 1, 0.0)
    assert shard.service.due() == 9.0
    shard.time = 9.0
    shard.service.expire()
    shard.time = 11.0
    assert shard.push(0, 1, -4.0) == {}
    assert shard.service.due() == 11.0 + 2 * 8.0 + 1.0
    shard.time = 14.0
    assert shard.push(1, 1, -2.0) == {}
    assert shard.service.due() == 14.0 + 2 * 8.0 + 1.0  # from the latest on
    assert shard.read(shard.service.expire()) == {0: (2, 3.0), 1: (2, 3.0)}


def test_a_quorum_is_waited_for_ten_seconds_at_least():
    """A machine may be busy for longer than a short round takes."""
    shard = Shard(quorum=2, grace_seconds=0.0)
    assert shard.service.due() is None
    shard.time = 0.5
    shard.push(0, 1, 0.0)
    assert shard.service.due() == 10.5


def test_what_messages_look_like_takes_no_memory():
    bucket = Bucket(0, [Item("a", torch.zeros(NUMEL))])
    cx = Context(step=0, start=0, membership=Membership(0, 2), learning_rate=lambda bucket: 0.1)
    served = quorum_average().serve(cx, bucket, identity(), average())
    assert served.request.is_meta
    assert served.reply.is_meta
    resting = quorum_average().meeting(cx, bucket, identity())
    assert (resting.tensor[0].shape, resting.reply[0].shape) == (served.request.shape, served.reply.shape)
    assert not resting.tensor.is_meta

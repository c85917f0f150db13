"""What is behind a message to a service is checked before the message is used."""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch

from relaxcomm.errors import ForgeryError
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.mailbox import REQUEST, Channel, Mailbox, SentMessage
from relaxcomm.network.seal import Seal
from relaxcomm.network.secret import Secret
from relaxcomm.network.service_messages import Arrivals, Header, RefusedError, Trailers, as_bytes
from relaxcomm.network.services import Services
from relaxcomm.network.transport import Membership
from tests.engine.harness import on_gloo

SEAL = Seal(Secret(b"a" * 32), b"session1")
LIKE = torch.empty(2, 3, dtype=torch.float64, device="meta")


def message(seal=SEAL, service=0, payload=None, **changed):
    """A trailer and a payload, as a rank sends them."""
    payload = torch.arange(6.0, dtype=torch.float64).view(2, 3) if payload is None else payload
    header = Header(**{"kind": 1, "sender": 2, "number": 1, "clock": 7, **changed})
    return Trailers(seal, service).make(header, payload), as_bytes(payload)


@pytest.mark.parametrize("seal", [SEAL, Seal(None, b"session1")], ids=["signed", "not signed"])
def test_it_says_what_was_sent(seal):
    trailer, payload = message(seal)
    assert trailer.numel() == Trailers(seal, 0).num_bytes
    header = Trailers(seal, 0).read(trailer, payload, 2, LIKE)
    assert header == Header(1, 2, 1, 7)


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (message(Seal(Secret(b"b" * 32), b"session1")), "its tag was not made with membership.secret"),
        (message(Seal(SEAL.secret, b"session2")), "its tag was not made"),
        (message(service=1), "its tag was not made"),
        (message(sender=1), "it says that rank 1 sent it"),
        (
            message(payload=torch.zeros(3, 2, dtype=torch.float64)),
            r"it holds \[3, 2\] torch.float64, where \[2, 3\]",
        ),
        (message(payload=torch.zeros(2, 3, dtype=torch.int64)), r"it holds \[2, 3\] torch.int64, where"),
    ],
    ids=["secret", "session", "service", "sender", "shape", "dtype"],
)
def test_what_is_not_as_agreed_is_refused(sent, complaint):
    with pytest.raises(RefusedError, match=complaint):
        Trailers(SEAL, 0).read(*sent, 2, LIKE)


def test_without_a_secret_the_header_is_checked_all_the_same():
    plain = Seal(None, b"session1")
    for sent, complaint in (
        (message(Seal(None, b"session2")), "another run or generation"),
        (message(plain, sender=0), "rank 0 sent it"),
        (message(plain, payload=torch.zeros(6, dtype=torch.float64)), "it holds"),
    ):
        with pytest.raises(RefusedError, match=complaint):
            Trailers(plain, 0).read(*sent, 2, LIKE)


@pytest.mark.parametrize("at", ["payload", "header", "tag"])
def test_one_changed_bit_is_seen(at):
    trailer, payload = message()
    changed, place = (payload, 5) if at == "payload" else (trailer, 9 if at == "header" else -1)
    changed[place] ^= 1
    with pytest.raises(RefusedError):
        Trailers(SEAL, 0).read(trailer, payload, 2, LIKE)


def test_each_message_counts_once_and_one_warning_is_given(caplog):
    arrivals = Arrivals(Trailers(SEAL, 0), LIKE, "rule 0")
    first, second = message(number=1), message(number=2)
    assert arrivals.take(*first, 2).number == 1
    assert arrivals.take(*second, 2).number == 2
    with caplog.at_level(logging.WARNING, logger="relaxcomm"):
        assert arrivals.take(*first, 2) is None
        assert arrivals.take(*second, 2) is None
    assert [record.getMessage() for record in caplog.records] == [
        "rule rule 0: a message of rank 2 was refused: message 1 has come before"
    ]
    assert arrivals.take(*message(sender=1), 1).number == 1  # counted for each rank


class Bringing:
    """A Gloo group over which these tensors have come."""

    def __init__(self, *tensors):
        self.tensors = list(tensors)

    def recv(self, into, other, tag):
        into[0].copy_(self.tensors.pop(0).view(into[0].dtype).view(into[0].shape))
        return self

    def wait(self, limit):
        pass


@pytest.mark.parametrize(
    ("kind", "asked", "complaint"),
    [(2, 3, None), (2, 4, "rank 2 has answered request 3, and not 4"), (1, 3, "rank 2 has answered")],
    ids=["it", "another", "a request"],
)
def test_an_answer_is_that_to_the_request(kind, asked, complaint):
    """What somebody on the way sends again is none: an earlier answer, or a request of that number."""
    trailer, payload = message(kind=kind, number=3)
    into = torch.empty_like(LIKE, device="cpu")
    channel = Channel(Membership(0, 3), None, Bringing(payload, trailer), ByteCounters(), SEAL)
    reply = Mailbox(channel, "rule 0", 0, LIKE, LIKE).receive_reply(into, 2, asked)
    with nullcontext() if complaint is None else pytest.raises(RefusedError, match=complaint):
        reply.wait(timedelta(0))
    assert into.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def train(world, monkeypatched):
    """Rank 1 forges one request before it trains; what rank 0 has taken in, and the parameters."""
    taken = []
    os.environ["RELAXCOMM_TEST_SECRET"] = "s" * 32
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {
        "algorithm": {"name": "ssp", "staleness": 0},
        "membership": {"secret": {"env": "RELAXCOMM_TEST_SECRET"}},
    }
    with world.attach(model, optimizer, config) as engine:
        model(torch.ones(1, 4)).sum().backward()
        (services,) = [one for one in monkeypatched() if one._channel.membership.rank == world.rank]
        (served,) = services._served.values()
        if world.rank == 1:
            forger = Trailers(Seal(Secret(b"f" * 32), services._channel.seal.session), 0)
            mailbox = served._mailbox
            honest, mailbox._trailers = mailbox._trailers, forger
            forged = torch.full(mailbox._request.shape, 77, dtype=mailbox._request.dtype)
            mailbox.send(REQUEST, forged, 0, clock=0).wait()
            mailbox._trailers = honest
        optimizer.step()
        engine.statistics["steps"]
        taken.append(model.weight.detach().clone())
    return taken[0].tolist()


def open_services():
    from relaxcomm.network import services

    return [one for one in services._serving if one._channel is not None and isinstance(one, Services)]


@pytest.mark.ranks
def test_a_forged_request_is_not_applied():
    """Were it taken in, rank 1's clock would be ahead, or the shard would hold what nobody has sent."""
    forged = on_gloo(train, 2, open_services)
    assert forged == [[[pytest.approx(-0.1)] * 4]] * 2


def meet(world):
    """Rank 1 sends an object that it has not signed as the others do; what each rank gets or raises."""
    os.environ["RELAXCOMM_TEST_SECRET"] = "s" * 32
    config = {"algorithm": "bsp", "membership": {"secret": {"env": "RELAXCOMM_TEST_SECRET"}}}
    with world.attach(torch.nn.Linear(2, 2), None, config) as engine:
        transport = engine.world.transport
        honest = transport.gather_objects(world.rank, "a test")
        seal = transport._seal
        if world.rank == 1:
            transport._seal = Seal(Secret(b"f" * 32), seal.session)
        try:
            transport.gather_objects(world.rank, "another test")
        except ForgeryError as error:
            return honest, str(error)
        finally:
            transport._seal = seal
    return honest, "taken"


@pytest.mark.ranks
def test_an_object_that_is_not_signed_is_not_unpickled():
    (first, zero), (second, one) = on_gloo(meet, 2)
    assert first == second == [0, 1]
    assert zero == "what came from rank 1 at another test was not made with membership.secret"
    assert one == "what came from rank 0 at another test was not made with membership.secret"


def test_a_message_has_its_memory_until_it_has_gone_out():
    class Going:
        is_out = False

        def wait(self, limit):
            if not self.is_out:
                raise RuntimeError("not sent")

    going, memory = Going(), torch.ones(4)
    held, sent = weakref.ref(memory), SentMessage([going], [memory], 1)
    del memory
    with pytest.raises(RuntimeError, match="not sent"):
        sent.wait(timedelta(0))
    assert held() is not None
    going.is_out = True
    sent.wait()
    assert held() is None

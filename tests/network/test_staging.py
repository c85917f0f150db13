"""Requests that come from a device: services and their threads know the CPU alone, and nobody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

import numpy as np
import pytest
import torch

from relaxcomm.errors import CommunicationError
from relaxcomm.network import services, torch_distributed
from relaxcomm.network.operations import Request
from relaxcomm.network.staging import Staging
from relaxcomm.network.streams import Streams as GpuStreams
from relaxcomm.plugin import Context, Membership, finish
from relaxcomm.primitives import error_feedback, identity, top_k
from relaxcomm.primitives.exchanges.parameter_server import ShardPlan, make_request
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from tests.engine.harness import World, on_gloo, train, values
from tests.models import CASES, take_step, trainable
from tests.network import pretended_nccl
from tests.network.pretended_nccl import Connected, Streams, pretended

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param("pretended"),
    pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU]),
]


class Later(Streams):
    """Copies are there when the test says so."""

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.is_there = threading.Event()

    def to_host(self, tensor):
        copy = torch.empty_like(tensor)

        def copied():
            if not self.is_there.is_set():
                return False
            copy.copy_(tensor)
            return True

        return copy, copied


class Answered:
    """A work whose answers are there; each is the request with one added."""

    def __init__(self, request):
        request.reply.copy_(request.tensor + 1)

    def wait(self, limit):
        pass

    def is_completed(self):
        return True


def test_a_request_is_sent_when_its_rows_are_there_and_in_order():
    streams, sent = Later(), []

    def ask(request):
        sent.append(request.tensor.tolist())
        return Answered(request)

    staging = Staging(streams, lambda: None)
    asked = [staging.ask(Request(torch.full((1, 2), 1.0 * n), torch.empty(1, 2)), ask) for n in range(3)]
    work, reply = asked[-1]
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match="not sent within"):
        work.wait(timedelta(milliseconds=10))
    assert sent == []
    streams.is_there.set()
    work.wait(timedelta(seconds=20))
    assert work.is_completed()
    assert not hasattr(work, "_send")  # nor the rows
    assert (sent, reply.tolist()) == ([[[0.0, 0.0]], [[1.0, 1.0]], [[2.0, 2.0]]], [[3.0, 3.0]])
    staging.end()


def test_what_a_device_has_made_in_vain_is_not_sent():
    def check():
        raise CommunicationError("rank 0 at step 1: rank 1 has ended")

    staging = Staging(Streams(torch.device("cpu")), check)
    work, _ = staging.ask(Request(torch.zeros(1, 1), torch.empty(1, 1)), Answered)
    with pytest.raises(CommunicationError, match="rank 1 has ended"):
        work.wait(timedelta(seconds=20))
    staging.end()


def test_it_ends_although_a_device_never_comes_to_a_request():
    staging = Staging(Later(), lambda: None)
    staging.ask(Request(torch.zeros(1, 1), torch.empty(1, 1)), Answered)
    staging.end()
    assert not staging._thread.is_alive()


@pytest.mark.parametrize("device", DEVICES)
def test_copies_on_the_host_are_what_the_stream_makes(device):
    if device == "cuda":
        streams, made = GpuStreams(torch.device("cuda", 0)), torch.arange(1e6, device="cuda").mul_(2)
    else:
        streams, made = Streams(torch.device("cpu")), torch.arange(1e6).mul_(2)
    copy, copied = streams.to_host(made)
    while not copied():
        pass
    assert copy.device.type == "cpu"
    assert torch.equal(copy, torch.arange(1e6).mul_(2))


@contextmanager
def staged() -> Iterator[None]:
    """Have all requests staged, as those of a GPU are."""
    with (
        patch.object(services, "is_staged", lambda operation: True),
        patch.object(torch_distributed, "Streams", Streams),
    ):
        yield


def train_staged(world: World, algorithm, steps):
    with staged():
        return train(world, {"algorithm": algorithm}, steps)


@pytest.mark.ranks
@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "ssp", "staleness": 0},
        {
            "name": "ssp",
            "staleness": 0,
            "compressor": {"error_feedback": {"compressor": {"top_k": {"density": 0.2}}}},
        },
    ],
    ids=["dense", "error_feedback"],
)
def test_staged_requests_bring_the_same(algorithm):
    found, expected = on_gloo(train_staged, 3, algorithm, 8), on_gloo(train, 3, {"algorithm": algorithm}, 8)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)  # in the order of arrival


@pytest.mark.ranks
@pytest.mark.parametrize("algorithm", ["ssp", "async_model_average", "ad_psgd", "decoupled_diloco", "heloco"])
def test_ranks_that_stage_end_with_one_model(algorithm):
    last = [history[-1] for history in on_gloo(train_staged, 3, algorithm, 12)]
    for other in last[1:]:
        np.testing.assert_allclose(other, last[0], rtol=1e-6, atol=1e-7)


def averages_early(world: World):
    """Rank 1 is slow, and waits for services of the others, which are in `averaged()` long before."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    with staged(), pretended(Connected):
        there = World(world.rank, world.size, pretended_nccl.transport(60))
        with there.attach(model, optimizer, {"algorithm": {"name": "ssp", "staleness": 2}}) as engine:
            for step in range(8):
                if world.rank == 1:
                    time.sleep(0.1)
                take_step(case.local_loss(model, step, world.rank), optimizer)
            with engine.averaged():
                return values(model)


@pytest.mark.ranks
def test_a_fast_rank_averages_while_a_slow_one_waits_for_its_service():
    first, *others = on_gloo(averages_early, 3)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-6, atol=1e-7)


def test_a_service_decodes_on_the_cpu_wherever_the_bucket_is():
    compressor = error_feedback(compressor=top_k(density=0.5))
    cx = Context(0, 0, Membership(0, 2), lambda bucket: 0.1)
    far = Bucket(0, [Item("weight", torch.empty(8, device="meta"))])
    near = Bucket(0, [Item("weight", torch.empty(8))])
    plan, known = ShardPlan(cx, far, compressor), ShardPlan(cx, near, compressor)
    pushed = torch.tensor([4.0, 0.0, 3.0, 0.0])
    coding = compressor.encode_decode(cx, pushed, dict(compressor.init(known.kept)), keep_sent=False)
    message = next(coding)
    packed = message.pack()
    finish(coding, [(1.0, message)])
    assert torch.equal(plan.decoder(packed), pushed)


def test_a_request_is_made_where_its_tensor_is():
    cx = Context(0, 0, Membership(0, 2), lambda bucket: 0.1)
    request = make_request(cx, torch.empty(8, device="meta"), identity(), {}, (1, 2))
    assert (request.tensor.device.type, request.reply.device.type) == ("meta", "cpu")

"""Large CPU buffers are used again, and never while a tensor looks at them."""

import threading

import pytest
import torch

import relaxcomm
from relaxcomm.checks.round_trip import context
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import choco_gossip, quantize, sign
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.messages import Dense
from relaxcomm.topology import ring
from tests.models import take_step

CPU = torch.device("cpu")
MANY = 1 << 18  # of float32: 1 MiB


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch):
    monkeypatch.setattr(buffer_pool, "LEAST_BYTES", 1 << 20)
    buffer_pool.release()


def place(tensor):
    return tensor.untyped_storage().data_ptr()


def test_memory_is_used_again_when_its_tensor_is_gone():
    first = buffer_pool.empty(MANY, torch.float32, CPU)
    where = place(first)
    assert place(buffer_pool.empty(MANY, torch.float32, CPU)) != where, "it is in use"
    del first
    others = [buffer_pool.empty(MANY, torch.float32, CPU) for _ in range(2)]
    assert where in map(place, others)


def test_a_view_keeps_it():
    whole = buffer_pool.empty_like(torch.ones(MANY)).zero_()
    where, view = place(whole), whole[5:9].view(2, 2)
    del whole
    other = buffer_pool.empty(MANY, torch.float32, CPU)
    assert place(other) != where
    other.fill_(7)
    assert view.tolist() == [[0, 0], [0, 0]]
    del view
    assert place(buffer_pool.empty(MANY, torch.float32, CPU)) == where


def test_types_share_it_by_their_size():
    wide = buffer_pool.empty_like(torch.ones(MANY), torch.float64)
    assert (wide.dtype, wide.shape) == (torch.float64, (MANY,))
    where = place(wide)
    del wide
    again = buffer_pool.empty(2 * MANY, torch.float32, CPU)
    assert place(again) == where


def test_small_ones_and_other_devices_are_torchs():
    small = buffer_pool.empty(MANY - 1, torch.float32, CPU)
    assert small.untyped_storage().resizable(), "torch's own, not a buffer of ours"
    assert buffer_pool.empty(0, torch.float32, CPU).shape == (0,)
    assert buffer_pool.empty(MANY, torch.float32, torch.device("meta")).device.type == "meta"


def test_it_can_be_let_go():
    where = buffer_pool.empty(MANY, torch.float32, CPU).fill_(1)
    kept = buffer_pool.empty(MANY, torch.float32, CPU)
    del where
    buffer_pool.release()
    assert not any(buffer_pool._free.values())
    del kept  # what was in use goes to nobody
    assert not any(buffer_pool._free.values())


def test_a_sum_is_written_over_its_first_message_alone():
    lent, other = torch.full((2,), 4.0), torch.full((2,), 8.0)
    assert sum_dense([(0.5, Dense(other)), (0.5, Dense(lent))], out=lent).tolist() == [6.0, 6.0]
    assert sum_dense([(0.5, Dense(lent)), (0.5, Dense(other))], out=lent) is lent
    assert lent.tolist() == [6.0, 6.0]


def test_threads_never_share_one():
    failures = []

    def work(number):
        for _ in range(200):
            mine = buffer_pool.empty(MANY, torch.float32, CPU)
            mine[:8].fill_(number)
            other = buffer_pool.empty(MANY, torch.float32, CPU)
            other[:8].fill_(-1)
            if mine[:8].tolist() != [number] * 8:
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


FEW = {
    "error_feedback": {
        "chain": [{"chunk_top_k": {"num_kept": 1, "chunk_size": 16}}, {"quantize": {"bits": 4}}]
    }
}


@pytest.mark.parametrize("compressor", [None, {"quantize": {"bits": 8}}, FEW])
def test_exchanges_of_a_large_model_need_no_more_memory_with_time(compressor, monkeypatch):
    """Three ranks, two buckets of 1 MiB; after a few steps none of them asks the system for a buffer."""
    made, steps = [], [0, 0, 0]
    fresh = buffer_pool._fresh
    monkeypatch.setattr(buffer_pool, "_fresh", lambda size: made.append(list(steps)) or fresh(size))

    def job(group):
        model = torch.nn.Sequential(torch.nn.Linear(512, 520), torch.nn.Linear(520, 512))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        algorithm = {"name": "local_sgd", "steps": 2, "delay": 1, "compressor": compressor}
        config = {"algorithm": algorithm, "bucket_bytes": 1 << 20}
        with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
            for step in range(12):
                steps[group.rank()] = step
                take_step(model(torch.ones(1, 512)).square().mean(), optimizer)
            return engine.statistics["bytes_sent"]

    assert min(relaxcomm.simulate(job, 3)) > 0
    assert made, "the buckets are large enough to be kept"
    assert all(min(when) < 6 for when in made)


@pytest.mark.parametrize("compressor", [sign(), quantize(bits=8)])
def test_compressed_gossip_holds_differences_alone_on_its_way_and_keeps_disagreements_there(
    compressor, monkeypatch
):
    """Beside them: what one bucket has sent and its mixture, and the new public copies in float64."""
    made: list[int] = []
    exchange, states, under_way = choco_gossip(gamma=0.4, topology=ring()), [], []
    numel, fresh = 4 * MANY, buffer_pool._fresh
    monkeypatch.setattr(buffer_pool, "_fresh", lambda size: made.append(size // (4 * numel)) or fresh(size))
    for index in range(2):
        bucket = Bucket(index, [Item("weight", torch.randn(numel))])
        states.append(dict(exchange.coding_slots(bucket, compressor, Membership(0, 2))))
        moved = bucket.copy().mul_(1.1)
        running = exchange.run(context(0, 2, layout=bucket.layout), moved, compressor, states[-1])
        under_way.append((running, next(running).sends[1]))
    assert sum(made) == 2
    for index, (running, sent) in enumerate(under_way):
        with pytest.raises(StopIteration):
            running.send({1: sent.clone()})
        assert sum(made) == 2 + 2 + 2 * (index + 1)

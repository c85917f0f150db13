"""A rank is lost in the middle of an epoch: the others read each of its samples once, and end in one step."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from tests.ranks import free_port, launch_script

pytestmark = pytest.mark.ranks

SIZE, SAMPLES, BATCH_SIZE, EPOCHS, LOST = 4, 480, 8, 3, 2

SCRIPT = """
import json, os, signal, sys, time, torch, relaxcomm
from relaxcomm.network.operations import Agree
from relaxcomm.network.process_groups import Groups

PORT, LOST_AT, BATCHES = map(int, sys.argv[1:4])
config = json.loads(sys.argv[4])
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
store = torch.distributed.TCPStore("127.0.0.1", PORT, None, False)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = Groups.start

def torn(groups, operation, *wait):
    # For one rank the last agreement is torn: it never has what the others have.
    works, result = start(groups, operation, *wait)
    if isinstance(operation, Agree) and engine.step == LOST_AT - 1:
        works = [*works, groups._host.recv([torch.empty(1)], LOST_RANK, 99)]
    return works, result

read = []
with relaxcomm.attach(model, optimizer, config) as engine:
    if rank == 1 and config["algorithm"] == "d_psgd":
        Groups.start = torn
    loader = engine.loader(torch.arange(SAMPLES).float(), batch_size=8)
    for epoch in range(EPOCHS):
        read.append([])
        for batch, x in enumerate(loader, 1):
            read[-1] += [int(one) for one in x]
            if rank == LOST_RANK and engine.step == LOST_AT:
                time.sleep(0.5 if config["algorithm"] == "d_psgd" else 0)
                os.kill(os.getpid(), signal.SIGKILL)
            if batch % BATCHES:
                with engine.no_sync():
                    model(x.view(-1, 1) / SAMPLES).square().mean().backward()
                continue
            model(x.view(-1, 1) / SAMPLES).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if config["algorithm"] != "d_psgd":
                time.sleep(0.012 if rank == 0 else 0.008)
    with engine.averaged():
        steps = engine.statistics["steps"]
print(json.dumps([steps, read]))
"""


def lose(lost_at: int, batches: int, **config: object) -> list[tuple[int, list[list[int]]]]:
    """The steps that each survivor has made, and what it has read in each epoch.

    Args:
        lost_at: steps that the victim ends; with `d_psgd` rank 1 does not end the last, and is behind.
        batches: of a step.
        config: where each has a clock of its own rank 0 is slow, and is behind.
    """
    config |= {"membership": {"elastic": True}, "bucket_bytes": 80}
    port = free_port()
    store = torch.distributed.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    constants = f"SAMPLES, EPOCHS, LOST_RANK = {SAMPLES}, {EPOCHS}, {LOST}\n"
    arguments = [str(port), str(lost_at), str(batches), json.dumps(config)]
    done = launch_script(constants + SCRIPT, SIZE, 60, arguments=arguments)
    del store
    left = [one for rank, one in enumerate(done) if rank != LOST]
    assert [one.returncode for one in left] == [0] * len(left), "\n".join(one.stderr for one in done)
    return [tuple(json.loads(one.stdout)) for one in left]


def check(found, in_last_epoch: int):
    """Each ends in the same step, after as many epochs, and none has read a sample twice.

    What the victim would have read as far as the others had come is read by nobody else.
    """
    assert len({steps for steps, _ in found}) == 1
    assert all(len(epochs) == EPOCHS for _, epochs in found)
    for epoch in range(EPOCHS):
        read = Counter(sample for _, epochs in found for sample in epochs[epoch])
        assert max(read.values()) == 1
        assert len(read) >= SAMPLES - (in_last_epoch if epoch == 2 else SAMPLES // SIZE)


@pytest.mark.parametrize(("lost_at", "batches"), [(30, 1), (9, 2)])
def test_a_rank_that_is_behind_reads_on_until_it_has_come_as_far(lost_at, batches):
    check(lose(lost_at, batches, algorithm="d_psgd", topology="ring"), 2 * BATCH_SIZE + SIZE)


@pytest.mark.parametrize("name", ["ssp", "async_model_average"])
def test_those_with_clocks_of_their_own_end_in_the_same_step(name):
    check(lose(22, 1, algorithm=name), SAMPLES // SIZE)

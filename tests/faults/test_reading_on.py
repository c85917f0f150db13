"""A rank is lost in the middle of an epoch: the others read each of its samples once, and end in one step."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.faults.small_script import MEET, kept_store
from tests.ranks import launch_script

pytestmark = pytest.mark.ranks

SIZE, SAMPLES, BATCH_SIZE, EPOCHS, LOST = 4, 480, 8, 3, 2

SCRIPT = (
    MEET
    + """
from relaxcomm.network.operations import Agree
from relaxcomm.network.process_groups import Groups

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = Groups.start

def torn(groups, operation, *wait):
    # For one rank the last agreement is torn: it never has what the others have.
    works, result = start(groups, operation, *wait)
    if isinstance(operation, Agree) and engine.step == LOST_AT - 1:
        works = [*works, groups._host.recv([torch.empty(1)], LOST, 99)]
    return works, result

read = []
with relaxcomm.attach(model, optimizer, CONFIG) as engine:
    if rank == 1 and CONFIG["algorithm"] == "d_psgd":
        Groups.start = torn
    loader = engine.loader(torch.arange(SAMPLES).float(), batch_size=8)
    for epoch in range(EPOCHS):
        read.append([])
        for batch, x in enumerate(loader, 1):
            read[-1] += [int(one) for one in x]
            if rank == LOST and engine.step == LOST_AT:
                end(0.5 if CONFIG["algorithm"] == "d_psgd" else 0)
            if batch % BATCHES:
                with engine.no_sync():
                    model(x.view(-1, 1) / SAMPLES).square().mean().backward()
                continue
            model(x.view(-1, 1) / SAMPLES).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if CONFIG["algorithm"] != "d_psgd":
                time.sleep(0.012 if rank == 0 else 0.008)
    with engine.averaged():
        steps = engine.statistics["steps"]
print(json.dumps([steps, read]))
"""
)


def lose(lost_at: int, batches: int, **config: object) -> list[tuple[int, list[list[int]]]]:
    """The steps that each survivor has made, and what it has read in each epoch.

    Args:
        lost_at: steps that the victim ends; with `d_psgd` rank 1 does not end the last, and is behind.
        batches: of a step.
        config: where each has a clock of its own rank 0 is slow, and is behind.
    """
    config |= {"membership": {"elastic": True}, "bucket_bytes": 80}
    store = kept_store()
    settings = {"PORT": store.port, "CONFIG": config, "LOST_AT": lost_at, "BATCHES": batches}
    settings |= {"SAMPLES": SAMPLES, "EPOCHS": EPOCHS, "LOST": LOST}
    done = launch_script(SCRIPT, SIZE, 60, arguments=[json.dumps(settings)])
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

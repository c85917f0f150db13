"""Over NCCL nobody waits for ever, and ranks that could not be connected are refused before they are."""

from __future__ import annotations

import json

import pytest
import torch

from tests.gpu.test_nccl import HEAD, run
from tests.ranks import launch_script

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FAILING = """
import signal, time
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 64, device=device)
begin, said = 0.0, ""
try:
    with relaxcomm.attach(model, optimizer, {"algorithm": "bsp", "timeout_seconds": LIMIT}) as engine:
        for step in range(2000):
            if step == 20:
                begin = time.monotonic()
                if rank == 1 and HOW == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if rank == 1 and HOW == "raise":
                    raise KeyError("mine")
                if rank == 1 and HOW == "stall":
                    time.sleep(60)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()  # the host waits for its GPU here
except relaxcomm.CommunicationError as error:
    said = str(error)
print(json.dumps([said, time.monotonic() - begin]), flush=True)
os._exit(0)  # the default group would wait for rank 1
"""

GOING_ON = """
import signal, time
torch.manual_seed(0)
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 64, device=device)
longest = 0.0
with relaxcomm.attach(model, optimizer, {"algorithm": ALGORITHM, "membership": {"elastic": True}}) as engine:
    for step in range(60):
        if step == 20 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        longest = max(longest, time.monotonic() - begin)
    ranks = engine.world.size
total = sum(p.detach().double().sum() for p in model.parameters()).item()
print(json.dumps([ranks, step + 1, total, longest]), flush=True)
os._exit(0)  # the default group would wait for rank 1
"""

ISOLATED = """
from relaxcomm.network.operations import *
from relaxcomm.network import TorchTransport
transport = TorchTransport.of(None, device=device, backend="auto", timeout_seconds=30, debug=False)
came = []
for step in range(3):
    other, message = 1 - rank, torch.full((4,), 10.0 * step + rank, device=device)
    empty = torch.empty(4, device=device)
    swap = Neighbors({other: message}, {other: empty}) if rank < 2 else Neighbors({}, {})
    got = transport.issue(swap, Label(step, "gossip")).wait()
    came.append([one[0].item() for one in got.values()])
transport.meet("the end")
transport.close()
print(json.dumps(came))
"""

REFUSED = """
model = torch.nn.BatchNorm1d(4).to(device)
if HOW == "buffers":
    model.running_mean = model.running_mean.cpu()
if HOW == "shared":
    del os.environ["NCCL_HOSTID"]
try:
    relaxcomm.attach(model, None, {"algorithm": "bsp", "timeout_seconds": 30})
    print(json.dumps("nothing"))
except relaxcomm.UsageError as error:
    print(json.dumps(str(error)))
"""

SERVED = """
from tests.models import CASES, make_optimizer
task = CASES["toy"]
model = task.model(seed=rank).to(device)
optimizer = make_optimizer("momentum", model)
compressor = {"error_feedback": {"compressor": {"top_k": {"density": 0.2}}}}
algorithm = {"name": "ssp", "staleness": 2, "compressor": compressor}
with relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 512}) as engine:
    for step in range(20):
        x, y = (t.to(device) for t in task.data(step, rank))
        if rank == 1:
            torch.cuda._sleep(20_000_000)
        task.loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 9:
            with engine.averaged():
                pass
print(json.dumps(torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().tolist()))
"""

ALONE = """
model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dist.destroy_process_group()
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
    del os.environ[name]
with relaxcomm.attach(model, optimizer, ALGORITHM) as engine:
    for _ in range(3):
        model(torch.randn(4, 8, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(json.dumps("trained"))
"""


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "diloco", "steps": 4}, "d_psgd", "ssp"])
def test_the_others_go_on_without_a_rank_that_was_killed(algorithm):
    done = launch_script(HEAD + f"ALGORITHM = {algorithm!r}\n" + GOING_ON, 3, 120, never_end={1})
    found = [json.loads(one.stdout.splitlines()[-1]) for one in done if one.returncode == 0]
    assert [one[:2] for one in found] == [[2, 60]] * 2, [one.stderr for one in done]
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-6)
    assert all(seconds < 10 for _, _, _, seconds in found)


@pytest.mark.parametrize(
    ("how", "limit", "words"),
    [
        ("kill", 60, "rank 1 has ended"),
        ("raise", 60, "rank 1 failed: KeyError"),
        ("stall", 5, "timeout_seconds"),
    ],
)
def test_the_others_name_the_rank_that_fails(how, limit, words):
    done = launch_script(HEAD + f"HOW, LIMIT = {how!r}, {limit}\n" + FAILING, 3, 120, never_end={1})
    for one in done:
        assert one.returncode == 0, one.stderr
        said, seconds = json.loads(one.stdout.splitlines()[-1])
        assert words in said
        assert seconds < (5 if how != "stall" else limit + 5)


def test_gossip_goes_on_beside_a_rank_without_neighbours():
    assert run(ISOLATED, 3) == [[[1.0], [11.0], [21.0]], [[0.0], [10.0], [20.0]], [[], [], []]]


@pytest.mark.parametrize(
    ("how", "words"),
    [("buffers", "running_mean on cpu"), ("shared", "ranks [0, 1] on")],
    ids=["buffers", "shared"],
)
def test_what_nccl_cannot_connect_is_refused_on_all_ranks(how, words):
    assert all(words in said for said in run(f"HOW = {how!r}\n" + REFUSED, 2))


def test_a_fast_rank_averages_while_a_slow_one_waits_for_its_service():
    first, *others = run(SERVED, 3)
    for other in others:
        assert other == pytest.approx(first, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("algorithm", ["bsp", "ssp", "local_sgd"])
def test_one_process_trains_alone(algorithm):
    assert run(f"ALGORITHM = {algorithm!r}\n" + ALONE, 1) == ["trained"]

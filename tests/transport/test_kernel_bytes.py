"""What a rank counts is what its kernel sent, within 3 %, on hosts of their own."""

import json

import pytest

from tests.namespaces import hosts, run_everywhere

SCRIPT = """
import json, time
import torch, torch.distributed as dist
from relaxcomm.operations import *
from relaxcomm.transport import TorchTransport

torch.set_num_threads(1)
dist.init_process_group("gloo")
transport = TorchTransport(None, device=torch.device("cpu"), backend="gloo", timeout_seconds=30, debug=False)
store = dist.distributed_c10d._get_default_store()
me, size = transport.membership.rank, transport.membership.world_size
right, left = (me + 1) % size, (me - 1) % size

def kernel():
    root = "/sys/class/net/eth0/statistics/"
    return [int(open(root + name).read()) for name in ("tx_bytes", "rx_bytes")]

def everyone(name):
    store.set(f"{name}/{me}", "here")
    store.wait([f"{name}/{rank}" for rank in range(size)])
    time.sleep(0.3)

found = {}
for numel in (1 << 18, 1 << 22):
    tensor = torch.ones(numel // size * size)
    makers = {
        "AllReduce": lambda: AllReduce(tensor, "mean"),
        "AllGather": lambda: AllGather(tensor),
        "AllToAll": lambda: AllToAll(tensor.view(size, -1)),
        "Broadcast": lambda: Broadcast(tensor, 0),
        "Neighbors": lambda: Neighbors({right: tensor}, {left: torch.empty_like(tensor)}),
    }
    for name, make in makers.items():
        transport.issue(make(), Label(0, name)).wait()  # the first one connects
        everyone(f"begin {name} {numel}")
        counted, seen = [transport.counters.sent, transport.counters.received], kernel()
        for _ in range(4):
            transport.issue(make(), Label(0, name)).wait()
        everyone(f"end {name} {numel}")
        after = [transport.counters.sent, transport.counters.received]
        found[f"{name} {numel}"] = [
            [b - a for a, b in zip(counted, after)], [b - a for a, b in zip(seen, kernel())]
        ]
everyone("done")
print(json.dumps(found))
"""


@pytest.mark.root
@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 3, 4])
def test_counts_are_the_kernels(size):
    with hosts(size) as on:
        outputs = run_everywhere(on, SCRIPT)
    for rank, output in enumerate(outputs):
        for name, (counted, seen) in json.loads(output.splitlines()[-1]).items():
            numel = int(name.split()[1])
            for direction, ours, kernels in zip(("sent", "received"), counted, seen, strict=True):
                # Headers and acknowledgements of what goes the other way are 1 % of the tensor at most.
                slack = 0.03 * ours + 4 * 4 * numel * 0.01
                assert abs(kernels - ours) <= slack, (rank, name, direction, ours, kernels)

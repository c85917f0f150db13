"""What a rank counts is what its kernel sent, within 3 % but for headers, on hosts of their own."""

import json

import pytest

from relaxcomm.config import registry
from tests.network_namespaces import hosts, run_everywhere

# Without the headers of Ethernet, IP and TCP: how many packets a tensor makes depends on how busy hosts are.
KERNEL = """
def kernel():
    numbers = next(line for line in open("/proc/net/dev") if "eth0:" in line).split(":")[1].split()
    return [int(numbers[at]) - 66 * int(numbers[at + 1]) for at in (8, 0)]  # sent, received

def resent():
    # Bytes that TCP sent again, since a busy host answered late.
    names, values = (line.split() for line in open("/proc/net/snmp") if line.startswith("Tcp:"))
    return 1500 * int(values[names.index("RetransSegs")])
"""

SCRIPT = """
import json, time
import torch, torch.distributed as dist
from relaxcomm.network.operations import *
from relaxcomm.network import TorchTransport

torch.set_num_threads(1)
dist.init_process_group("gloo")
cpu = torch.device("cpu")
transport = TorchTransport.of(None, device=cpu, backend="gloo", timeout_seconds=30, debug=False)
store = dist.distributed_c10d._get_default_store()
me, size = transport.membership.rank, transport.membership.world_size
right, left = (me + 1) % size, (me - 1) % size

def everyone(name):
    store.set(f"{name}/{me}", "here")
    store.wait([f"{name}/{rank}" for rank in range(size)])
    time.sleep(0.3)

found = {}
for numel in (1 << 18, 1 << 21):
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
        counted, seen, again = [transport.counters.sent, transport.counters.received], kernel(), resent()
        for _ in range(4):
            transport.issue(make(), Label(0, name)).wait()
        everyone(f"end {name} {numel}")
        after = [transport.counters.sent, transport.counters.received]
        found[f"{name} {numel}"] = [
            [b - a for a, b in zip(counted, after)], [b - a for a, b in zip(seen, kernel())], resent() - again
        ]
everyone("done")
print(json.dumps(found))
"""


@pytest.mark.root
@pytest.mark.ranks
@pytest.mark.parametrize(
    "size", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_counts_are_the_kernels(size):
    with hosts(size) as on:
        found = [json.loads(output.splitlines()[-1]) for output in run_everywhere(on, KERNEL + SCRIPT)]
    for rank, mine in enumerate(found):
        for name, (counted, seen, _) in mine.items():
            numel, again = int(name.split()[1]), sum(theirs[name][2] for theirs in found)
            for direction, ours, kernels in zip(("sent", "received"), counted, seen, strict=True):
                slack = 0.03 * ours + 0.001 * 4 * 4 * numel + again  # ranks also meet at a store in between
                assert abs(kernels - ours) <= slack, (rank, name, direction, ours, kernels)


EXCHANGES = """
import json, time
import torch, torch.distributed as dist
import relaxcomm
from relaxcomm import topology
from relaxcomm.checks.compositions import algorithm_around
from relaxcomm.config import registry
from relaxcomm.config.examples import from_example
from relaxcomm.fields import docstrings

torch.set_num_threads(1)
dist.init_process_group("gloo")
store, me, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
GRAPHS = topology.complete(), topology.hierarchical(sizes=(1, 2)), topology.ring(), topology.star()

def everyone(name):
    store.set(f"{name}/{me}", "here")
    store.wait([f"{name}/{rank}" for rank in range(size)])
    time.sleep(0.3)

def attach(name, model, optimizer):
    made = registry.primitives()["exchange"][name]
    arguments = from_example(name, made, {})
    algorithm = algorithm_around(made(**arguments))
    for graph in GRAPHS:
        try:
            return relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "topology": graph})
        except relaxcomm.RelaxcommError as error:
            refused = error
    raise refused

found = {}
for name in sorted(registry.primitives()["exchange"]):
    model = torch.nn.Linear(1 << 10, 1 << 11, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    def steps():
        for _ in range(4):
            model(torch.randn(2, 1 << 10)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    with attach(name, model, optimizer) as engine:
        steps()
        everyone(f"begin {name}")
        counted, seen = [engine.statistics[k] for k in ("bytes_sent", "bytes_received")], kernel()
        steps()
        everyone(f"end {name}")
        after = [engine.statistics[k] for k in ("bytes_sent", "bytes_received")]
        found[name] = [[b - a for a, b in zip(counted, after)], [b - a for a, b in zip(seen, kernel())]]
everyone("done")
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.ranks
def test_counts_of_every_exchange_are_the_kernels():
    """A model of 8 MiB trained for four steps; the counts of whole steps, agreements included."""
    with hosts(3) as on:
        outputs = run_everywhere(on, KERNEL + EXCHANGES)
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert found[0].keys() == registry.primitives()["exchange"].keys()
    for name in found[0]:
        ours = sum(rank[name][0][0] for rank in found)
        kernels = sum(rank[name][1][0] for rank in found)
        assert ours > 0, name
        assert abs(kernels - ours) <= 0.03 * ours, (name, ours, kernels)


EVALUATIONS = """
import json, time
import torch, torch.distributed as dist
import relaxcomm

torch.set_num_threads(1)
dist.init_process_group("gloo")
store, me, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
WAYS = "sent", "received"

def everyone(name):
    store.set(f"{name}/{me}", "here")
    store.wait([f"{name}/{rank}" for rank in range(size)])
    time.sleep(0.3)

def counted():
    return [[engine.statistics[f"{what}bytes_{way}"] for way in WAYS] for what in ("", "evaluation_")]

model = torch.nn.Linear(1 << 10, 1 << 10, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
with relaxcomm.attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 3}}) as engine:
    def work():
        for _ in range(6):
            model(torch.randn(2, 1 << 10)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with engine.averaged():
            pass
    work()
    everyone("begin")
    before, seen, again = counted(), kernel(), resent()
    work()
    everyone("end")
    print(json.dumps([before, counted(), [b - a for a, b in zip(seen, kernel())], resent() - again]))
"""


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.ranks
def test_training_and_evaluation_together_are_the_kernels():
    with hosts(2) as on:
        found = [json.loads(output.splitlines()[-1]) for output in run_everywhere(on, KERNEL + EVALUATIONS)]
    again = sum(theirs[3] for theirs in found)
    for before, after, kernels, _ in found:
        for way in range(2):
            training, evaluation = (after[what][way] - before[what][way] for what in range(2))
            assert training == pytest.approx(2 * evaluation, rel=0.01)  # two synchronisations, one average
            slack = 0.03 * (training + evaluation) + again
            assert kernels[way] == pytest.approx(training + evaluation, abs=slack)

"""How the code's own work grows with the number of workers, without their network.

    python -m benchmarks.scale_of_code [--most 1000] [--meeting 64] [--simulated 256]

For every topology and 8, 64, 256, 512 and 1,000 workers it measures one rank of them in one process: its
graph and its row of mixing weights, the checks at attach, attach itself, and a step, whose other ranks are
mirrors of this one (benchmarks/mirror.py); with the messages and bytes of a step, what events gather, and
the answers of `/sd` and `/metrics`. Then real Gloo groups are made between threads, whose operations on the
store are counted, and tiny models are trained over the in-process network. Behind each row stands the
exponent with which it grows over the last two sizes: what all ranks must tell all others grows by 1 a rank.
Seconds are the processor's, which others on the machine change little; only `seconds_of_all` are the clock's.
"""

from __future__ import annotations

import math
import statistics
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import networkx as nx
import torch

import relaxcomm
from benchmarks import meeting
from benchmarks.mirror import Mirror
from benchmarks.report import Report, make_parser
from relaxcomm import Topology, topology as graphs

SIZES = (8, 64, 256, 512, 1000)
MEETING_SIZES = (4, 8, 16, 32, 64)
SIMULATED_SIZES = (16, 64, 128, 256)
SIMULATED: Mapping[str, Mapping[str, Any]] = {
    "bsp": {"algorithm": "bsp"},
    "d_psgd on a ring": {"algorithm": "d_psgd", "topology": "ring"},
    "local_sgd, every step": {"algorithm": {"name": "local_sgd", "steps": 1}},
    "selsync": {"algorithm": "selsync"},
    "ad_psgd on a ring": {"algorithm": "ad_psgd", "topology": "ring"},
}
STEPS = 3
T = TypeVar("T")


def topologies(size: int) -> dict[str, Callable[[], Topology]]:
    """Every topology that there is, made for a number of workers."""
    side = max(2, math.isqrt(size))
    return {
        "complete": graphs.complete,
        "ring": graphs.ring,
        "star": graphs.star,
        "grid": graphs.grid,
        "torus": graphs.torus,
        "hypercube": graphs.hypercube,
        "exponential": graphs.exponential,
        "one_peer_exponential": graphs.one_peer_exponential,
        "random_pairs": graphs.random_pairs,
        "random_regular": lambda: graphs.random_regular(degree=4),
        "erdos_renyi, half of all pairs": lambda: graphs.erdos_renyi(probability=0.5),
        "hierarchical, groups of 8": lambda: graphs.hierarchical(sizes=8),
        "hierarchical, sqrt(N) groups": lambda: graphs.hierarchical(sizes=side),
        "in_turn, ring and random_pairs": lambda: graphs.in_turn(
            topologies=(graphs.ring(), graphs.random_pairs())
        ),
        "from_networkx, a circulant": lambda: graphs.from_networkx(nx.circulant_graph(size, [1, 2])),
    }


def timed(function: Callable[[], T]) -> tuple[float, T]:
    begin = time.process_time()
    made = function()
    return time.process_time() - begin, made


def one_rank(make: Callable[[], Topology], size: int) -> dict[str, float]:
    """What one rank does for a topology, in seconds, messages and bytes."""
    found: dict[str, float] = {}
    found["graph_seconds"], _ = timed(lambda: make().graph(size))
    rank = size // 2

    def row() -> object:
        graph = make()
        return graph.weights(size)[rank], graph.listeners(rank, size)

    found["row_seconds"], _ = timed(row)
    found["check_seconds"], _ = timed(lambda: make().check(size))
    found["describe_seconds"], _ = timed(lambda: make().describe(size))
    return found | attached(make(), size)


def attached(graph: Topology, size: int) -> dict[str, float]:
    """Attach, steps and metrics of rank 0, whose peers are its mirrors."""
    found: dict[str, float] = {}
    transport = Mirror(0, size)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = {"algorithm": "d_psgd", "topology": graph, "metrics": {"port": 0}}
    seconds, engine = timed(
        lambda: relaxcomm.attach(model, optimizer, config, process_group=transport),
    )
    found |= {"attach_seconds": seconds, "gathered_bytes": float(transport.gathered_bytes)}

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 16)).square().mean().backward()
        optimizer.step()

    with engine:
        found["first_step_seconds"], _ = timed(step)
        messages, sent = transport.messages, transport.counters.sent
        found["step_seconds"] = statistics.median(timed(step)[0] for _ in range(STEPS))
        found["messages"] = (transport.messages - messages) / STEPS
        found["bytes"] = (transport.counters.sent - sent) / STEPS
        assert engine.metrics_url is not None
        for name in ("sd", "metrics"):
            found[f"{name}_seconds"], text = timed(lambda name=name: _get(f"{engine.metrics_url}/{name}"))  # type: ignore[misc]  # mypy knows no defaults of lambdas
            found[f"{name}_bytes"] = len(text)
        found["series"] = sum(not line.startswith("#") for line in text.splitlines())
    return found


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def simulated(config: Mapping[str, Any], size: int) -> dict[str, float]:
    """Attach and a step of a rank in the in-process network, whose ranks take turns: the mean over them."""
    ends: dict[str, float] = {}

    def train(group: relaxcomm.InProcessGroup) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with relaxcomm.attach(model, optimizer, config, process_group=group):
            ends["attach"] = time.process_time()
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(torch.ones(2, 8)).square().mean().backward()
                optimizer.step()
            ends["steps"] = time.process_time()

    begin = time.process_time()
    relaxcomm.simulate(train, size)
    return {
        "all_seconds": (time.process_time() - begin) / size,
        "attach_seconds": (ends["attach"] - begin) / size,
        "step_seconds": (ends["steps"] - ends["attach"]) / STEPS / size,
    }


def show(name: str, by_size: Mapping[int, Mapping[str, float]]) -> None:
    """A line for each measure, with its exponent over the last two sizes."""
    print(f"\n{name}: " + ", ".join(f"{size:,}" for size in by_size))
    for measure in next(iter(by_size.values())):
        values = [one[measure] for one in by_size.values()]
        shown = "  ".join(
            f"{value:11,.4f}" if "seconds" in measure else f"{value:11,.0f}" for value in values
        )
        print(f"  {measure:22} {shown}   N^{exponent(list(by_size), values):.1f}", flush=True)


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """With what power of the size the last two values grow."""
    if len(values) < 2 or min(values[-2:]) <= 0:
        return 0.0
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def main() -> None:
    parser = make_parser("scale-of-code", __doc__, most=1000, meeting=64, simulated=256)
    arguments = parser.parse_args()
    report = Report(arguments)
    torch.set_num_threads(1)
    attached(graphs.ring(), 8)  # imports what is imported late
    found: dict[str, dict[str, dict[int, dict[str, float]]]] = {
        "topologies": {},
        "meeting": {},
        "simulated": {},
    }
    for name in topologies(8):
        by_size = found["topologies"][name] = {}
        for size in SIZES:
            fitting = 1 << (size.bit_length() - 1) if name == "hypercube" else size
            if fitting <= arguments.most:
                by_size[fitting] = one_rank(topologies(fitting)[name], fitting)
        show(name, by_size)
        report.write(found)
    sizes = [size for size in MEETING_SIZES if size <= arguments.meeting]
    found["meeting"]["gloo"] = {size: meeting.measure(size) for size in sizes}
    show("transports over Gloo, a rank", found["meeting"]["gloo"])
    for name, config in SIMULATED.items():
        sizes = [size for size in SIMULATED_SIZES if size <= arguments.simulated]
        found["simulated"][name] = {size: simulated(config, size) for size in sizes}
        show(f"in-process network, {name}, a rank", found["simulated"][name])
        report.write(found)
    report.close(found)


if __name__ == "__main__":
    main()

"""What the planner says beside ranks that train over the same links in virtual time, for all algorithms.

    python -m benchmarks.plan_simulated                     # some minutes

Nothing is measured on this machine: both are in virtual time, and the same on any. Four workers train four
buckets of 64 KiB, with steps of 50 ms and no time for coding; those of graphs on a ring, groups of two.
Left out are `auto`, which is planned as what it chooses, and `adaptive_local_sgd`, whose batch size follows
from its gradients.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.report import dated, result_file
from relaxcomm import CompositionError, attach, simulate
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.config import registry
from relaxcomm.config.examples import from_example
from relaxcomm.config.grammar import parse_algorithm, parse_primitive
from relaxcomm.network import InProcessGroup
from relaxcomm.network.link import Link, parse_link
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.tensors.items import Item
from relaxcomm.training.pilot import Pace

LINKS = ("100mbit,1ms", "100mbit,20ms", "10gbit,1ms", "10gbit,20ms")
_WORKERS, _SIZE, _LAYERS, _LEAST_STEPS = 4, 128, 4, 24
_TIMES, _BATCH = StepTimes(0.05), 2
_SAMPLES = 8 * _WORKERS
_LEFT_OUT = {"auto", "adaptive_local_sgd"}
_GIVEN: Mapping[str, Mapping[str, Any]] = {  # short periods, and what keeps the run in its last phase
    **{
        one: {"steps": 8}
        for one in ("decoupled_diloco", "diloco", "heloco", "noloco", "slowmo", "sparseloco")
    },
    **{one: {"steps": 4} for one in ("des_loc", "easgd", "local_sgd")},
    "hierarchical_local_sgd": {"steps": 8},
    "post_local_sgd": {"steps": 4, "after_steps": 4},
    "qadam": {"warmup_steps": 1},
    "streaming_diloco": {"steps": 8, "fragments": 2, "delay": 1},
}


def configured(name: str) -> Any:
    """An algorithm by its name, with what its docstring's example gives."""
    build, given = registry.algorithms()[name].build, _GIVEN.get(name, {})
    return {"name": name, **given, **from_example(name, build, given)}


def topology_of(algorithm: Algorithm) -> Any:
    """The graph that it needs."""
    kinds = {rule.exchange.facts.topology for rule in algorithm.rules}
    if "groups" in kinds:
        return {"hierarchical": {"sizes": 2}}
    try:
        algorithm.check_topology(parse_primitive("topology", "ring"))
    except CompositionError:
        return "complete"
    return "ring" if "graph" in kinds else "complete"


def planned(name: str, link: Link) -> Replay:
    """The replay of an algorithm."""
    algorithm = parse_algorithm(configured(name))
    scenario = Scenario(
        _WORKERS,
        _TIMES,
        OwnLinks(link),
        topology=parse_primitive("topology", topology_of(algorithm)),
        bucket_bytes=4 * _SIZE**2,
        speeds=Speeds(0.0, 0.0, 0.0, 0.0),
        samples=_SAMPLES,
        batch_size=_BATCH,
    )
    return Replay(algorithm, [Item(*one) for one in _model().named_parameters()], scenario)


def trained(name: str, link: Link, steps: int) -> tuple[float, float]:
    """Seconds and bytes of a step of ranks that train, on average over steps after the first ones."""
    algorithm = configured(name)
    config = {
        "algorithm": algorithm,
        "topology": topology_of(parse_algorithm(algorithm)),
        "bucket_bytes": 4 * _SIZE**2,
    }
    times = _TIMES.draw(2 * steps, _WORKERS, 0)

    def rank(group: InProcessGroup) -> tuple[float, float]:
        model, pace = _model(), Pace(group, _TIMES, times[:, group.rank()])
        kind = torch.optim.Adam if name == "des_loc" else torch.optim.SGD
        optimizer = kind(model.parameters(), lr=1e-6)
        pace.follow(model)
        with attach(model, optimizer, config, process_group=group) as engine:
            batches, begun = _batches(engine if name == "fedavg" else None), (0.0, 0.0)
            for step in range(2 * steps):
                if step == steps:
                    begun = group.time(), engine.statistics["bytes_sent"]
                batch = next(batches)
                pace.forward(step, 1.0)
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            ended = group.time(), engine.statistics["bytes_sent"]
            engine.close(average=False)
        return (ended[0] - begun[0]) / steps, (ended[1] - begun[1]) / steps

    seconds, sent = zip(*simulate(rank, _WORKERS, link=link), strict=True)
    return sum(seconds) / _WORKERS, sum(sent) / _WORKERS


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(_SIZE, _SIZE, bias=False) for _ in range(_LAYERS)])


def _batches(engine: Any) -> Iterator[torch.Tensor]:
    """Of the engine's loader for those whose rounds follow from the data."""
    data = torch.utils.data.TensorDataset(torch.ones(_SAMPLES, _SIZE))
    while True:
        if engine is None:
            yield torch.ones(_BATCH, _SIZE)
        else:
            yield from (batch for (batch,) in engine.loader(data, batch_size=_BATCH))


def row(name: str) -> str:
    """Of each link the ratios of seconds and of bytes, planned by trained."""
    cells = []
    for words in LINKS:
        link = parse_link(words)
        replay = planned(name, link)
        steps = math.ceil(_LEAST_STEPS / replay.plan.timetable.cycle) * replay.plan.timetable.cycle
        found, (seconds, sent) = replay.run(), trained(name, link, steps)
        cells.append(f"{found.step_seconds / seconds:.3f}, {found.sent_bytes / max(1.0, sent):.3f}")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--algorithms", help="names with commas between; all unless given")
    parser.add_argument("--output", type=result_file, default=dated("plan-simulated", "md"))
    arguments = parser.parse_args()
    known = sorted(set(registry.algorithms()) - _LEFT_OUT)
    names = arguments.algorithms.split(",") if arguments.algorithms else known
    lines = [f"| planned / simulated: seconds, bytes | {' | '.join(LINKS)} |", "|---" * 5 + "|"]
    print("\n".join(lines))
    for name in names:
        lines.append(row(name))
        print(lines[-1], flush=True)
    arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

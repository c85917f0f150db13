"""What relaxcomm adds to a step on a GPU: `bsp` beside DistributedDataParallel, and one that sends nothing.

    python -m benchmarks.gpu.steps
    python3 -m benchmarks.gpu.bare build/gpu-bundle benchmarks.gpu.steps      # on a machine without a network
    python -m benchmarks.gpu.steps --device cpu --width 32 --layers 1 --local-layers 1 --rounds 6

1. `bsp` and DDP on 1, 2 and 4 ranks of one GPU, over NCCL: the ratio of median steps, and that of DDP and a
   second DDP, which is the noise floor. Sides live in the same processes and take turns in all orders.
2. One rank's step of a transformer of 100 million parameters with `local_sgd` that never exchanges, and with
   no engine; how often the host waits, and the share of a step that our callbacks take on the host.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.host_waits import profiled_waits
from benchmarks.gpu.ranks import run_on
from benchmarks.gpu.step_sides import Shape, Side
from benchmarks.measure import ratio_of_medians
from benchmarks.report import Report, make_parser, positive, why

AGAINST_DDP = ("ddp", "bsp", "ddp_again")
AGAINST_NOTHING = ("plain", "local", "plain_again")
_TOLERANCE = 1e-3
_WARM_STEPS, _PROFILED_STEPS, _MOST_STEPS = 4, 6, 200


def take_turns(
    rank: int,
    device: torch.device,
    names: Sequence[str],
    shape: Shape,
    rounds: int,
    block_seconds: float,
    bucket_bytes: int,
) -> dict[str, Any]:
    """Seconds a step of all sides, in turn; of the second one also what it makes the host do.

    Args:
        names: of the sides: the reference, ours, and the reference again.
        shape: of the model and its batch.
        rounds: in each of which every side has a block; a multiple of 6 covers all orders.
        block_seconds: about how long a block lasts.
        bucket_bytes: of relaxcomm's buckets.
    """
    sides = {name: Side(name, shape, rank, device, bucket_bytes) for name in names}
    for side in sides.values():
        side.timed(_WARM_STEPS)  # which connects, and compiles
    warm = [side.timed(_WARM_STEPS) for side in sides.values()]
    steps = torch.tensor([min(max(round(block_seconds / max(warm)), 3), _MOST_STEPS)])
    dist.broadcast(steps, 0)
    blocks: dict[str, list[list[float]]] = {name: [] for name in names}
    orders = itertools.cycle(itertools.permutations(names))
    for order in itertools.islice(orders, rounds):
        for name in order:
            dist.all_reduce(torch.zeros(1))  # all begin together
            taken = torch.tensor([sides[name].timed(int(steps))], dtype=torch.float64)
            dist.all_reduce(taken)
            blocks[name].append([taken.item() / dist.get_world_size()])
    ours = sides[names[1]]
    apart = max(abs(a - b) for a, b in zip(sides[names[0]].means(), ours.means(), strict=True))
    host = ours.host_share(int(steps))
    waits = waits_of(ours) if device.type == "cuda" else {"waits": None}
    for side in sides.values():
        side.close()
    return {
        "parameters": sum(one.numel() for one in ours.model.parameters()),
        "seconds": blocks,
        "steps_a_block": int(steps),
        "host_share": host,
        **waits,
        "largest_difference_of_a_parameters_mean": apart,
    }


def waits_of(side: Side) -> dict[str, Any]:
    """Those of the host in some steps, or why the profiler cannot tell."""
    try:
        return {"waits": profiled_waits(side.step, _PROFILED_STEPS)}
    except Exception as error:  # the times are known
        return {"waits": None, "not_profiled": why(error)}


def compare(names: Sequence[str], found: dict[str, Any]) -> dict[str, Any]:
    """Ratios with intervals, and whether ours lies within the spread of the reference against itself."""
    reference, ours, again = (found["seconds"][name] for name in names)
    ratio, floor = ratio_of_medians(ours, reference), ratio_of_medians(again, reference)
    return {
        "median_milliseconds": {
            name: 1e3 * statistics.median(time for block in found["seconds"][name] for time in block)
            for name in names
        },
        "ratio": ratio,
        "noise_floor": floor,
        "within_the_spread": ratio.value <= max(1.0, floor.high),
        "same_training": found["largest_difference_of_a_parameters_mean"] <= _TOLERANCE,
        **found,
    }


def told(label: str, names: Sequence[str], record: dict[str, Any]) -> str:
    """One comparison in two lines."""
    if "failed" in record:
        return f"{label}: {record['failed']}"
    medians = ", ".join(f"{name} {value:.3f} ms" for name, value in record["median_milliseconds"].items())
    differs = "" if record["same_training"] else "; NOT THE SAME TRAINING"
    waits = "not looked for" if record["waits"] is None else len(record["waits"])
    return (
        f"{label}: {medians}\n"
        f"  {names[1]} / {names[0]} {record['ratio']}, {names[2]} / {names[0]} {record['noise_floor']}; "
        f"callbacks {record['host_share']:.2%} of the host's time, "
        f"waits in {_PROFILED_STEPS} steps: {waits}{differs}"
    )


def main() -> None:
    parser = make_parser(
        *("steps", __doc__),
        **{"rounds": 12, "width": 512, "layers": 8, "local_width": 768, "local_layers": 15},
        **{"context": 256, "batch": 8, "limit_seconds": 420, "bucket_bytes": 25 << 20},
    )
    parser.add_argument("--ranks", type=positive(int), nargs="+", default=[1, 2, 4], help="default 1 2 4")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda")
    parser.add_argument("--block-seconds", type=positive(float), default=0.4, help="of a side's turn")
    arguments = parser.parse_args()
    shape = Shape(arguments.width, arguments.layers, arguments.context, arguments.batch)
    local = Shape(arguments.local_width, arguments.local_layers, arguments.context, arguments.batch)
    plan = [(f"bsp, {num} ranks", AGAINST_DDP, shape, num) for num in arguments.ranks]
    plan.insert(0, ("a step that sends nothing", AGAINST_NOTHING, local, 1))
    report, records = Report(arguments), {}
    deadline = time.monotonic() + arguments.limit_seconds
    for number, (label, names, model, num) in enumerate(plan):
        share = (deadline - time.monotonic()) / (len(plan) - number)  # what one leaves, the next ones have
        try:
            found = run_on(
                *(arguments.device, num, share, take_turns),
                *(names, model, arguments.rounds, arguments.block_seconds, arguments.bucket_bytes),
            )
            records[label] = {"ranks": num, **compare(names, found)}
        except Exception as error:  # of a rank, with its traceback; the others are still measured
            records[label] = {"ranks": num, "failed": why(error)}
        report.write(records)
        print(told(label, names, records[label]), flush=True)
    report.close(records)


if __name__ == "__main__":
    main()

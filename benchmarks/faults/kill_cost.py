"""What a kill costs those who are left: seconds until they notice, and seconds until they go on.

    sudo python -m benchmarks.faults.kill_cost
    sudo python -m benchmarks.faults.kill_cost --megabits 1000 --parameters 1000000

Four workers on hosts of their own, their store on a fifth; nobody can look at another's processes. The
victim ends by SIGKILL between two steps, or in the middle of an exchange. Noticing is from the kill until the
error comes up in the engine; recovery from there until the engine hands the loop back, in a new world.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import relaxcomm
from benchmarks.faults import damage, notes
from benchmarks.faults.forks import StoreKeeper, start
from benchmarks.lab.network import Host, end_in_order, hosts
from benchmarks.report import Report, make_parser
from relaxcomm.engine.session import Session

SIZE, VICTIM, FAULT_STEP, LIMIT_SECONDS = 4, 2, 6, 180.0
_STEPS = 14
ALGORITHMS: dict[str, Any] = {
    "bsp": "bsp",
    "local_sgd": {"name": "local_sgd", "steps": 4},
    "diloco": {"name": "diloco", "steps": 4},
}
_WIDTH = 512


def _model(parameters: int) -> torch.nn.Module:
    depth = max(1, round(parameters / (_WIDTH * _WIDTH + _WIDTH)))
    return torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(depth)))


def train(
    rank: int, address: str, port: int, folder: Path, algorithm: str, at: str, parameters: int, limit: float
) -> None:
    """A rank of the run."""
    seen = notes.Notes(folder / str(rank))
    torch.set_num_threads(1)
    store = dist.TCPStore(address, port, None, False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    _note_changes(seen)
    torch.manual_seed(0)
    model = _model(parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    config = {
        "algorithm": ALGORITHMS[algorithm],
        "membership": {"elastic": True},
        "timeout_seconds": limit,
        "drift_guard": {"every_steps": 4},
    }
    torch.manual_seed(1 + rank)
    with relaxcomm.attach(model, optimizer, config) as engine:
        for step in range(_STEPS):
            if rank == VICTIM and step == FAULT_STEP:
                if at == "exchange":
                    damage.die_in_an_exchange(lambda: seen.add("fault"))
                else:
                    seen.add("fault")
                    damage.to_this_process("SIGKILL in compute")
            model(torch.randn(4, _WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.add("step", step=step, ranks=engine.world.size)
        seen.add("end")


def _note_changes(seen: notes.Notes) -> None:
    """Note when the engine learns of a loss, and when it is over it."""
    go_on = Session.go_on

    def noted(*arguments: Any, **options: Any) -> None:
        seen.add("noticed")
        go_on(*arguments, **options)
        seen.add("recovered")

    Session.go_on = noted  # type: ignore[method-assign]  # in this process alone


def measure(on: list[Host], algorithm: str, at: str, parameters: int, limit: float) -> dict[str, Any]:
    """One kill: seconds until the last survivor noticed, recovered, and had finished a step."""
    with tempfile.TemporaryDirectory(prefix="kill") as name, StoreKeeper(on[SIZE]) as keeper:
        folder = Path(name)
        processes = [
            start(
                *(train, rank, keeper.address, keeper.port, folder, algorithm, at, parameters, limit),
                host=on[rank],
                errors=folder / f"{rank}.errors",
            )
            for rank in range(SIZE)
        ]
        deadline = time.monotonic() + LIMIT_SECONDS
        for process in processes:
            process.join(max(0.1, deadline - time.monotonic()))
        for process in processes:
            process.kill()
        ranks = [notes.read(folder / str(rank)) for rank in range(SIZE)]
        left = [rank for index, rank in enumerate(ranks) if index != VICTIM]
        if any(rank[-1]["kind"] != "end" for rank in left):
            said = [(folder / f"{rank}.errors").read_text()[-500:] for rank in range(SIZE)]
            return {"algorithm": algorithm, "at": at, "went_on": False, "errors": said}
    killed = next(note["seconds"] for note in ranks[VICTIM] if note["kind"] == "fault")
    noticed, recovered, stepped = (
        [_first(rank, kind, killed) - killed for rank in left] for kind in ("noticed", "recovered", "trained")
    )
    times = [note["seconds"] for note in ranks[VICTIM] if note["kind"] == "step"]
    return {
        "algorithm": algorithm,
        "at": at,
        "went_on": True,
        "step_seconds": round((times[-1] - times[0]) / (len(times) - 1), 3),
        "noticed_seconds": [round(one, 3) for one in noticed],
        "recovery_seconds": [round(b - a, 3) for a, b in zip(noticed, recovered, strict=True)],
        "recovery_after_the_last_noticed_seconds": round(max(recovered) - max(noticed), 3),
        "next_step_ended_seconds": [round(one, 3) for one in stepped],
        "load_average": os.getloadavg()[0],
    }


def _first(rank: list[dict[str, Any]], kind: str, killed: float) -> float:
    """When a rank first noted something after the kill; "trained": a whole step among those who are left."""
    if kind == "trained":
        after = [n for n in rank if n["kind"] == "step" and n["ranks"] == SIZE - 1]
        return float(after[1]["seconds"])
    return float(next(n["seconds"] for n in rank if n["kind"] == kind and n["seconds"] > killed))


def main() -> None:
    end_in_order()
    parser = make_parser(
        "kill-cost", __doc__, parameters=10_000_000, megabits=100, rounds=3, timeout_seconds=60
    )
    arguments = parser.parse_args()
    report, results = Report(arguments), []
    with hosts(SIZE + 1, f"{arguments.megabits}mbit") as on:
        for _ in range(arguments.rounds):
            for algorithm in ALGORITHMS:
                for at in ("compute", "exchange"):
                    found = measure(on, algorithm, at, arguments.parameters, arguments.timeout_seconds)
                    results.append(found)
                    print(found, flush=True)
                    report.write(results)
    report.close(results)


if __name__ == "__main__":
    sys.exit(main())

"""A worker of relaxcomm: the first ones meet in the launcher's store, later ones ask to be let in."""

from __future__ import annotations

import relaxcomm
from benchmarks.goodput.workload import loss, make, meet, my_notes, worker

_TIMEOUT_SECONDS = 20


def main() -> None:
    model, optimizer = make()
    meet()
    notes = my_notes()
    config = {
        "algorithm": "bsp",
        "membership": {"elastic": True},
        "timeout_seconds": _TIMEOUT_SECONDS,
        "drift_guard": {"every_steps": 50},
    }
    with relaxcomm.attach(model, optimizer, config) as engine:
        weight = next(model.parameters())
        while True:
            step = engine.step
            optimizer.zero_grad()
            value = loss(model, step, worker())
            value.backward()
            before = weight.detach().clone()
            optimizer.step()
            if not before.equal(weight):  # else it was given up
                notes.add("step", step=step, loss=value.item())


if __name__ == "__main__":
    main()

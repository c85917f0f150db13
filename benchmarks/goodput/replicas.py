"""A worker of torchft 0.2: a replica group of its own, which averages gradients by `manager.allreduce`.

Its DistributedDataParallel is left out: survivors of a kill fail in its hook (`assert fut._fut`),
so that all four start again, at the first step.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, Optimizer, ProcessGroupGloo

from benchmarks.goodput.workload import loss, make, my_notes, worker


def main() -> None:
    model, inner = make()

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=f"worker_{worker()}",
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    optimizer = Optimizer(manager, inner)
    notes = my_notes()
    while True:
        step = manager.current_step()
        optimizer.zero_grad()
        value = loss(model, step, worker())
        value.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.nn.utils.parameters_to_vector(gradients)
        manager.allreduce(flat).wait()
        torch.nn.utils.vector_to_parameters(flat, gradients)
        # A replica that is behind counts no samples in the step in which it gets the others' state.
        takes_part = manager.is_participating()
        optimizer.step()
        if manager.current_step() > step and takes_part:
            notes.add("step", step=manager.current_step() - 1, loss=value.item())


if __name__ == "__main__":
    main()

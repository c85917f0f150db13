"""What processes of their own do with torchtitan: it changes much of a process that imports it."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "frameworks" / "torchtitan"))

import small  # noqa: E402  # before torchtitan
from torchtitan import trainer as titan  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402

from relaxcomm.errors import RelaxcommError  # noqa: E402
from relaxcomm.integrations import torchtitan as ours  # noqa: E402
from relaxcomm.integrations.torchtitan_checks import check  # noqa: E402

STEPS = 6


def held(trainer):
    """What this rank holds of the model, every 16th entry of it."""
    parts = [p.detach().to_local().flatten() for p in trainer.model_parts[0].parameters()]
    return torch.cat(parts)[::16].numpy().copy()


def watched(cls):
    """A Trainer that keeps what it holds after each step, and each step's loss."""

    class Watched(cls):
        def train_step(self, data_iterator):
            super().train_step(data_iterator)
            self.history.append(held(self))

    return Watched


def settings(algorithm):
    return {"algorithm": algorithm, "bucket_bytes": 200_000, "timeout_seconds": 120}


def train(replicas, folder, algorithm=None, *, steps=STEPS, accumulate=1, precision="float32", **changes):
    """Train; the history, what is held after close, the metrics that were logged, and the trainer."""
    parts = small.parts(replicas, steps, 0)
    parts["training"] = replace(
        parts["training"],
        global_batch_size=4 * int(os.environ["WORLD_SIZE"]) * accumulate,
        max_norm=0.5,
        mixed_precision_param=precision,
    )
    parts["metrics"] = replace(parts["metrics"], log_freq=1)
    parts |= {"dump_folder": str(folder), **changes}
    if algorithm is None:
        trainer = watched(titan.Trainer)(titan.Trainer.Config(**parts))
    else:
        trainer = watched(ours.Trainer)(ours.Trainer.Config(**parts, relaxcomm=settings(algorithm)))
    logged = []
    trainer.metrics_processor.logger.log = lambda metrics, step: logged.append(metrics)
    trainer.history = []
    try:
        trainer.train()
    finally:
        trainer.close()
    return {"history": trainer.history, "end": held(trainer), "logged": logged}


def checkpoints(**options):
    return CheckpointManager.Config(enable=True, interval=3, last_save_model_only=False, **options)


def resumed(replicas, folder, algorithm):
    """A run, and the end of it again from its checkpoint at step 3."""
    whole = train(replicas, folder, algorithm, checkpoint=checkpoints())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder / "checkpoint" / "step-6")
    dist.barrier()
    again = train(replicas, folder, algorithm, checkpoint=checkpoints())
    return whole["history"][3:], again["history"]


def saved_model(folder):
    """What every rank reads of the model that lies in the checkpoint."""
    from torch.distributed import checkpoint as dcp

    place = folder / "checkpoint" / "step-6"
    facts = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
    name = "tok_embeddings.weight"
    state = {name: torch.empty(facts[name].size)}
    dcp.load(state, checkpoint_id=place, no_dist=True)
    return state[name].numpy()


def refused(**changes):
    """What a configuration is refused with."""
    parts = small.parts(2, 1, 0)
    try:
        check(ours.Trainer.Config(**{**parts, **changes}))
    except RelaxcommError as error:
        return str(error)


def without_ours(folder):
    """Torchtitan's own checkpoint, which has nothing of this rank's."""
    train(2, folder, checkpoint=checkpoints())
    try:
        train(2, folder, "bsp", steps=STEPS + 1, checkpoint=checkpoints())
    except RelaxcommError as error:
        return str(error)


def failed(folder):
    """How a run ends whose data fail on rank 1, and whether torchtitan's own close was reached."""
    batches = small.Text.__iter__

    def failing(text):
        for batch in batches(text):
            if text.rank == 1 and text.step == 3:
                raise RuntimeError("no data")
            yield batch

    with (
        mock.patch.object(small.Text, "__iter__", failing),
        mock.patch.object(titan.Trainer, "close") as closed,
    ):
        try:
            train(3, folder, {"name": "local_sgd", "steps": 1000})
        except Exception as error:
            return str(error), closed.called


def four(folder):
    """Two replicas of two shards."""
    found = {
        "native": train(2, folder),
        "bsp": train(2, folder, "bsp"),
        "native, accumulated": train(2, folder, accumulate=2),
        "bsp, accumulated": train(2, folder, "bsp", accumulate=2),
        "local_sgd": train(2, folder, {"name": "local_sgd", "steps": 4}),
        "ssp": train(2, folder, "ssp", steps=20),
        "d_psgd": train(2, folder, "d_psgd", steps=20),
        "bf16": train(2, folder, "bsp", precision="bfloat16"),
    }
    for name, algorithm in {"local_sgd": {"name": "local_sgd", "steps": 4}, "diloco": "diloco"}.items():
        found[f"resumed {name}"] = resumed(2, folder / name, algorithm)
    found["saved"] = saved_model(folder / "local_sgd")
    found["foreign"] = without_ours(folder / "foreign")
    parallel = small.parts(2, 1, 0)["parallelism"]
    batches = small.parts(2, 1, 0)["training"]
    found["refused"] = {
        "tensor": refused(parallelism=replace(parallel, tensor_parallel_degree=2)),
        "one": refused(parallelism=replace(parallel, data_parallel_replicate_degree=1)),
        "batch": refused(training=replace(batches, global_batch_size=7)),
    }
    return found


def three(folder):
    """Three replicas of one rank each."""
    found = {"native": train(3, folder), "bsp": train(3, folder, "bsp")}
    return {**found, "failed": failed(folder)}


if __name__ == "__main__":
    made = {"three": three, "four": four}[sys.argv[1]](Path(sys.argv[2]))
    Path(sys.argv[2], f"found-{dist.get_rank()}").write_bytes(pickle.dumps(made))

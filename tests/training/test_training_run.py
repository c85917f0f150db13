"""Training runs that go on from a checkpoint, also among others, and those whose disk is full."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from relaxcomm import ConfigError, Task, UsageError, config, simulate
from relaxcomm.training.training_run import Run

CPU = torch.device("cpu")


class Interrupted(Exception):
    """The run ends here."""


def make(learning_rate=0.05, stops_at=None, epochs=2):
    torch.manual_seed(0)
    inputs = torch.randn(96, 3)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.5)
    steps = 0

    def loss(model, batch):
        nonlocal steps
        steps += 1
        if steps == stops_at:
            raise Interrupted
        return (model(batch[0]) - batch[1]).square().mean()

    return Task(
        model=model,
        optimizer=optimizer,
        train_data=TensorDataset(inputs, inputs.sum(1, keepdim=True)),
        loss=loss,
        evaluate=lambda model: (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().item(),
        metric="error",
        higher_is_better=False,
        epochs=epochs,
        batch_size=4,
        evaluate_every_steps=2,
    )


def run(path, workers, algorithm="bsp", seed=0, every_steps=3, **options):
    settings = {
        "algorithm": algorithm,
        "task": "digits",
        "workers": workers,
        "seed": seed,
        "bucket_bytes": 12,
        "checkpoint": {"path": str(path), "every_steps": every_steps},
    }

    def rank(group):
        made = Run(config.load(settings), make(**options), CPU, group.transport())
        return made.progress.steps, made.run(), made.progress.steps

    return simulate(rank, workers)


@pytest.mark.parametrize("stops_at", [8, 13], ids=["first epoch", "second epoch"])
def test_fewer_workers_go_on(tmp_path, stops_at):
    """96 samples: 3 workers make 8 steps of 4 in an epoch, 2 workers 12."""
    with pytest.raises(Interrupted):
        run(tmp_path, 3, stops_at=stops_at)
    (expected, records, found), *_ = run(tmp_path, 2)
    (first, *_), (second, *_) = (record.history for record in records)
    assert expected == 24 > found == records[0].statistics["steps"]
    assert [point.step for point in records[0].history] == [*range(2, found, 2), found]
    sent = [one.bytes_sent for one in records[0].history]
    assert sent == sorted(sent)
    assert first.bytes_sent > 0
    assert first.bytes_sent == second.bytes_sent


def test_the_rest_of_an_epoch_is_counted(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, 3, stops_at=8)
    for _, records, found in run(tmp_path, 3):
        assert found == records[0].statistics["steps"] == 16


def test_waits_are_counted_from_the_beginning(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, 3, stops_at=15)
    after = run(tmp_path, 3)[0][1][0].statistics
    again = run(tmp_path, 3)[0][1][0].statistics
    assert after["exposed_communication_seconds"] > 0
    assert again["exposed_communication_seconds"] > 0.5 * after["exposed_communication_seconds"]


def test_another_seed_is_refused_on_all_ranks(tmp_path):
    run(tmp_path, 3)
    with pytest.raises(
        ConfigError, match=r"^the checkpoint is of a run with seed 0, and this one has 1"
    ) as caught:
        run(tmp_path, 3, seed=1)
    assert "set seed: 0" in str(caught.value)
    assert "ConfigError(" not in str(caught.value)


def test_another_learning_rate_is_told_of(tmp_path, capsys):
    run(tmp_path, 3)
    capsys.readouterr()
    run(tmp_path, 3, learning_rate=0.1, epochs=3)
    told = capsys.readouterr().err
    assert told.count("goes on with lr 0.05, as it was saved, ") == told.count(", not with 0.1") == 1
    assert "momentum" not in told


def test_several_optimizers_and_schedules_step_and_are_saved(tmp_path, capsys):
    """A run that is stopped and goes on ends as one that was not."""
    ends = []

    def both(folder, rate=0.02, **options):
        def rank(group):
            task = make(**options)
            weight, bias = task.model.parameters()
            optimizers = [torch.optim.SGD([weight], lr=rate), torch.optim.Adam([bias], lr=0.1)]
            schedules = [torch.optim.lr_scheduler.StepLR(one, 4, gamma=0.5) for one in optimizers]
            task = replace(task, optimizer=optimizers, scheduler=schedules)
            settings = {"algorithm": "bsp", "checkpoint": {"path": str(folder), "every_steps": 3}}
            Run(config.load(settings), task, CPU, group.transport()).run()
            rates = [one.param_groups[0]["lr"] for one in optimizers]
            ends.append([*rates, *torch.cat([weight.flatten(), bias]).tolist()])

        return simulate(rank, 2)

    both(tmp_path / "whole")
    with pytest.raises(Interrupted):
        both(tmp_path / "stopped", stops_at=17)
    both(tmp_path / "stopped", rate=0.03)
    assert len(ends) == 4
    assert ends[0] == ends[1] == ends[2] == ends[3]
    assert ends[0][:2] == [0.02 / 2**6, 0.1 / 2**6]
    told = capsys.readouterr().err
    assert "goes on with lr 0.02, as it was saved, " in told
    assert ", not with 0.03" in told


def test_progress_names_the_algorithm_that_runs_now(capsys):
    settings = {
        "algorithm": "bsp",
        "phases": [{"after_steps": 5, "algorithm": {"name": "local_sgd", "steps": 2}}],
        "task": "digits",
        "workers": 2,
    }
    simulate(lambda group: Run(config.load(settings), make(), CPU, group.transport()).run(), 2)
    told = capsys.readouterr().err
    assert told.count("relaxcomm: local_sgd from step 5\n") == 1
    assert told.index("bsp  step 2/24 ") < told.index("bsp, now local_sgd  step 6/24 ")


def pairs(micro_batch_size):
    """Train on pairs of samples that are read in two ways: as a list of two, or as two with four each."""
    task = make(epochs=1)
    data = [({"x": one}, {"x": one + 1}) for one, _ in task.train_data]
    task = replace(task, train_data=data, loss=lambda model, batch: model(batch[0]["x"]).square().mean())
    settings = {"algorithm": "bsp", "data": {"micro_batch_size": micro_batch_size}}

    def rank(group):
        made = Run(config.load(settings), task, CPU, group.transport())
        made.run()
        return made.progress.step

    return simulate(rank, 1)


def test_batches_are_looked_into_only_to_cut_them():
    assert pairs(None) == [24]
    with pytest.raises(UsageError, match="can be read in several ways"):
        pairs(2)


def test_a_disk_that_is_full_at_the_end_leaves_the_result(tmp_path, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    (_, records, steps), *_ = run(tmp_path, 3, every_steps=16)
    assert records[0].history[-1].step == steps == 16
    assert "the result is whole" in capsys.readouterr().err

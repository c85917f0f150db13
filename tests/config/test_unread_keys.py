"""Keys of a file that `relaxcomm train` reads and a script does not: honoured, refused or named."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import relaxcomm

DATA = torch.utils.data.TensorDataset(torch.arange(24.0)[:, None])


def attached(config, size=2, **loader):
    """Lengths of the batches of each rank."""

    def program(group):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
            return [len(x) for (x,) in engine.loader(DATA, **loader)]

    return relaxcomm.simulate(program, size)


def test_a_number_of_workers_that_is_not_there_is_refused_on_all_ranks(tmp_path):
    path = tmp_path / "relaxcomm.yaml"
    path.write_text("algorithm: bsp\nworkers: 4\n")
    for size in (1, 3):
        with pytest.raises(
            relaxcomm.ConfigError, match=f"workers is 4, but this run has {size}.*--nproc-per-node 4"
        ):
            attached(str(path), size, batch_size=4)
    assert attached(str(path), 4, batch_size=6) == [[6]] * 4


def test_the_configured_batch_size_is_the_loaders():
    config = {"algorithm": "bsp", "data": {"batch_size": 6}}
    assert attached(config) == attached(config, batch_size=6) == [[6, 6]] * 2
    with pytest.raises(relaxcomm.ConfigError, match=r"batch_size=4, and data\.batch_size .* is 6; leave one"):
        attached(config, batch_size=4)
    with pytest.raises(
        relaxcomm.ConfigError, match=r"needs a batch_size: give it, or the key data\.batch_size"
    ):
        attached({"algorithm": "bsp"})


@pytest.mark.parametrize("given", ["2", 2.0, True, 0])
def test_a_batch_size_that_is_no_number_of_samples_is_refused(given):
    with pytest.raises(
        relaxcomm.ConfigError, match=r"batch_size is .*; it must be a whole number of at least 1"
    ):
        attached({"algorithm": "bsp"}, batch_size=given)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"task": "digits"}, "^task: only `relaxcomm train` reads this"),
        ({"task": "digits", "data": {"micro_batch_size": 2}}, r"^task, data\.micro_batch_size: only"),
        ({"output": "runs"}, "output: runs stays empty.*metrics: {}"),
        ({"algorithm": "ssp", "drift_guard": {"every_steps": 2}}, "drift_guard has no effect: under ssp"),
    ],
)
def test_keys_without_effect_are_named_once(more, says):
    with pytest.warns(relaxcomm.ConfigWarning, match=says) as caught:
        attached({"algorithm": "bsp", **more}, 3, batch_size=4)
    assert len(caught) == 1, "on rank 0 alone"
    assert caught[0].filename == __file__


def test_keys_that_are_read_are_not_named(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = {"algorithm": "bsp", "seed": 3, "output": str(tmp_path), "metrics": {"port": 0}}
        attached(config, batch_size=4)

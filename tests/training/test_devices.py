"""Which device a rank trains on, and what a run says of it."""

from collections import namedtuple

import pytest
import torch

from relaxcomm import config
from relaxcomm.errors import ConfigError
from relaxcomm.training.devices import choose_device, device_name, move, why_on_cpu
from relaxcomm.training.trainer import train

DIGITS = {"algorithm": "bsp", "task": {"digits": {"epochs": 1, "hidden": [8]}}}


@pytest.fixture
def gpus(monkeypatch):
    """Makes PyTorch see so many GPUs."""

    def pretend(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


def test_move_keeps_the_shape_of_a_batch():
    pair = namedtuple("pair", "x y")  # what a user's collate function may return
    batch = {"a": [torch.zeros(2), "text"], "b": pair(torch.ones(1), (torch.ones(2),))}
    moved = move(batch, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"].x.device.type == moved["b"].y[0].device.type == "meta"
    assert moved["a"][1] == "text"
    assert isinstance(moved["b"], pair)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_gpus_is_refused():
    with pytest.raises(ConfigError, match="each of the 3 local workers, PyTorch sees 0; use"):
        choose_device(config.load(DIGITS | {"backend": "nccl"}), 3)


@pytest.mark.parametrize(
    ("backend", "count", "local_workers", "says"),
    [
        pytest.param("auto", 1, 3, "3 local workers for 1 GPU, and each needs its own; start 1", id="few"),
        pytest.param("auto", 2, 3, "3 local workers for 2 GPUs, and each needs its own; start 2", id="fewer"),
        pytest.param("auto", 3, 3, None, id="one each"),
        pytest.param("auto", 0, 3, None, id="none here"),
        pytest.param("gloo", 2, 3, None, id="the CPU was asked for"),
    ],
)
def test_a_run_says_why_it_leaves_gpus_alone(gpus, backend, count, local_workers, says):
    gpus(count)
    job = config.load(DIGITS | {"backend": backend})
    reason = why_on_cpu(choose_device(job, local_workers), job, local_workers)
    assert (reason is None) == (says is None)
    assert says is None or says in reason


def test_rank_0_says_it_and_the_result_names_the_device(gpus, monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    gpus(2)
    result = train(config.load(DIGITS)).result
    assert result.device == "cpu"
    assert capsys.readouterr().err.count("training on the CPU: there are 3 local workers for 2 GPUs") == 1


def test_a_gpu_goes_by_its_model(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"model {device.index}")
    assert device_name(torch.device("cuda", 1)) == "model 1"
    assert device_name(torch.device("cpu")) == "cpu"

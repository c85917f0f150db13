"""Where NCCL connects ranks, each needs its model as a whole on a GPU of its own; else all are told."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import UsageError
from relaxcomm.engine.attaching import device_checks
from relaxcomm.engine.attaching.device_checks import check_devices, check_gpus
from tests.engine.harness import World
from tests.network import pretended_nccl
from tests.network.pretended_nccl import Connected, pretended
from tests.ranks import RankError, run_ranks

CPU, ZERO, ONE = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("parameters", "buffers", "current", "said"),
    [
        ({"a": ZERO, "b": ONE, "c": ZERO}, {}, 0, r"several devices: a on cuda:0, b on cuda:1; .*'cuda:0'"),
        ({"a": ONE}, {"mean": CPU, "var": ONE}, 1, r"buffers are not: mean on cpu; .*model.to\('cuda:1'\)"),
        ({"a": ONE}, {}, 0, r"current device is cuda:0; call torch.cuda.set_device\(1\)"),
        ({"a": ONE}, {f"b{n}": CPU for n in range(9)}, 1, r"b4 on cpu and 4 more"),
    ],
    ids=["parameters", "buffers", "current", "many"],
)
def test_what_nccl_cannot_work_with_is_named(parameters, buffers, current, said):
    with pytest.raises(UsageError, match=said):
        check_devices(parameters, buffers, current)


def test_a_model_on_the_current_device_is_taken():
    check_devices({"a": ONE, "b": ONE}, {"mean": ONE}, 1)


def test_ranks_that_share_a_gpu_are_named():
    with pytest.raises(UsageError, match=r"ranks \[0, 2\] on here GPU-7;.*LOCAL_RANK"):
        check_gpus(["here GPU-7", "here GPU-8", "here GPU-7"])
    check_gpus(["here GPU-7", "there GPU-7", "", ""])


def attaches(rank, spoilt):
    """Rank `spoilt` finds its model where NCCL cannot take it; without one all find the same GPU."""

    def gpu_of(model, named, transport):
        if rank == spoilt:
            check_devices({"weight": ZERO}, {"mean": CPU}, 0)
        return "here GPU-7"

    with pretended(Connected), pytest.MonkeyPatch.context() as patched:
        patched.setattr(device_checks, "gpu_of", gpu_of)
        World(rank, 2, pretended_nccl.transport(20)).attach(torch.nn.Linear(2, 2), None, {"algorithm": "bsp"})


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("spoilt", "said"), [(1, "mean on cpu"), (None, "ranks [0, 1] on here GPU-7")], ids=["one", "all"]
)
def test_all_ranks_are_told(spoilt, said):
    with pytest.raises(RankError) as caught:
        run_ranks(attaches, 2, spoilt)
    assert sorted(caught.value.errors) == [0, 1]
    for kind, text in caught.value.errors.values():
        assert kind == "UsageError"
        assert said in text


def test_over_gloo_nothing_is_asked():
    class Elsewhere:
        backend = "gloo"

    assert device_checks.gpu_of(torch.nn.Linear(2, 2), (), Elsewhere()) == ""

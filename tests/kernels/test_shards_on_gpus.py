"""Each rank's part of a tensor coded on its own, all at once: as one by one, whatever the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaxcomm import primitives
from relaxcomm.checks.round_trip import context
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.fused_feedback import QuantizedFeedback
from relaxcomm.roles import is_buffer
from relaxcomm.step.kept_slots import Slots
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.testing import PretendGpu
from tests.kernels.comparing import entries, same_bits
from tests.kernels.interpreter import DEVICE, HAS_GPU

NUMEL = 100  # of which the last of three parts is shorter
SIZES = 51, 12, 37  # of tensors, two of which lie in two parts
CODERS = {
    "quantize": primitives.quantize(bits=4, block_size=20),
    "minmax_uint8": primitives.minmax_uint8(block_size=20),
    "stochastic": primitives.quantize(bits=8, rounding="stochastic", symmetric=True),
    "long blocks": primitives.quantize(bits=8, block_size=5000),
    "qsgd": primitives.qsgd(levels=1, block_size=20),
    "terngrad": primitives.terngrad(),
    "sign": primitives.sign(),
}


def plain(coder):
    return primitives.scatter_gather(), coder


def fed_back(coder):
    return primitives.scatter_gather(), primitives.error_feedback(compressor=coder, decay=0.5)


def fed_back_twice(coder):
    return primitives.scatter_gather(server_feedback=True), primitives.error_feedback(compressor=coder)


def voted(coder):
    return primitives.vote(), coder


def exchanged(exchange, coder, dtype, rank, size, gpu=None):
    """What one of so many ranks sends, what comes of it, and what it keeps, where all send what it does.

    A GPU has counted what the second step takes: slots lie one behind the other after the first.
    """
    device = DEVICE if gpu is None else torch.device("cuda")
    parts = torch.split(torch.zeros(NUMEL, dtype=dtype, device=device), SIZES)
    bucket = Bucket(0, [Item(str(index), part) for index, part in enumerate(parts)])
    state = Slots(exchange.coding_slots(bucket, coder, Membership(rank, size)), "these")
    found = []
    for step in range(2):
        x, good = entries(NUMEL, dtype, seed=step).to(device), torch.tensor(True).to(device)
        if gpu is not None:
            gpu.work.clear()
        run = exchange.run(context(rank, size, step, bucket.layout), x, coder, state)
        sent = next(run).tensor
        mean = run.send(received([sent[rank]] * size, gpu)).tensor
        with pytest.raises(StopIteration) as stopped:
            run.send(received([mean if index == rank else row for index, row in enumerate(sent)], gpu))
        state.commit(good)
        kept = [state[slot] for slot in state if not is_buffer(slot)]
        found += [sent, mean, stopped.value.value, *kept]
    return found


def received(rows, gpu):
    """Rows as a network brings them, which launches nothing."""
    with torch.utils._python_dispatch._disable_current_modes():
        together = torch.stack(rows)
    return together if gpu is None else gpu.take(together)


@pytest.mark.every_other("name")
@pytest.mark.parametrize(
    ("name", "around", "dtype"),
    [
        ("quantize", fed_back_twice, torch.float32),
        ("quantize", fed_back_twice, torch.bfloat16),
        ("minmax_uint8", fed_back, torch.bfloat16),
        ("stochastic", fed_back, torch.float32),
        ("long blocks", plain, torch.float32),
        ("qsgd", fed_back_twice, torch.bfloat16),
        ("terngrad", fed_back, torch.float32),
        ("sign", fed_back_twice, torch.float32),
        ("sign", voted, torch.float32),
    ],
)
def test_all_parts_at_once_have_the_bits_of_one_by_one(name, around, dtype, kernels, monkeypatch):
    arguments = *around(CODERS[name]), dtype, 2, 3
    with implementation("triton"), np.errstate(all="ignore"):
        found = exchanged(*arguments)
        for family in (QuantizedFeedback, type(CODERS[name])):
            monkeypatch.setattr(family, "takes_shards", lambda self, tensor: False)
        expected = exchanged(*arguments)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.skipif(HAS_GPU, reason="what a pretended GPU holds is for Triton's interpreter")
@pytest.mark.every_other("name")
@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("quantize", fed_back_twice),
        ("minmax_uint8", plain),
        ("qsgd", plain),
        ("terngrad", fed_back),
        ("sign", plain),
        ("sign", voted),
    ],
)
def test_launches_do_not_grow_with_the_number_of_ranks(name, around, kernels):
    found = []
    for size in (2, 8):
        with PretendGpu() as gpu, implementation("triton"), np.errstate(all="ignore"):
            exchanged(*around(CODERS[name]), torch.float32, 0, size, gpu)
        assert not gpu.work.waits
        found.append(dict(gpu.work.kernels))
    assert found[0] == found[1]
    assert sum(found[0].values()) < 20


@pytest.mark.skipif(HAS_GPU, reason="what a pretended GPU holds is for Triton's interpreter")
def test_numbers_in_gathered_rows_of_an_odd_length_take_no_launch_a_rank(kernels):
    coder, found = CODERS["minmax_uint8"], []
    for size in (2, 8):
        with PretendGpu() as gpu, implementation("triton"), np.errstate(all="ignore"):
            x = entries(NUMEL + 1).to("cuda")
            run = primitives.all_gather().run(context(0, size), x, coder, {})
            sent = next(run).tensor
            gpu.work.clear()
            with pytest.raises(StopIteration):
                run.send(received([sent] * size, gpu))
        found.append(dict(gpu.work.kernels))
    assert found[0] == found[1]

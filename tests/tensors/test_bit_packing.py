"""Packed codes come back, and take no more bytes than they must."""

import math

import numpy as np
import pytest
import torch

from relaxcomm.tensors.bit_packing import (
    pack_codes,
    pack_places,
    pack_signs,
    packed_bytes,
    places_bytes,
    unpack_codes,
    unpack_places,
)


@pytest.mark.parametrize("num_codes", [2, 3, 4, 5, 8, 15, 16, 31, 64, 127, 128, 255, 256])
@pytest.mark.parametrize("numel", [0, 1, 2, 4, 5, 7, 8, 9, 16, 1001])
def test_codes_come_back(numel, num_codes):
    codes = torch.randint(num_codes, (numel,), generator=torch.Generator().manual_seed(numel)).byte()
    before = codes.clone()
    packed = pack_codes(codes, num_codes)
    assert packed.dtype == torch.uint8
    assert packed.numel() == packed_bytes(numel, num_codes)
    assert torch.equal(unpack_codes(packed, numel, num_codes), codes)
    assert torch.equal(codes, before)


@pytest.mark.parametrize("num_codes", range(2, 257))
def test_no_byte_is_wasted(num_codes):
    bits = 1.6 if num_codes == 3 else math.ceil(math.log2(num_codes))
    assert packed_bytes(8000, num_codes) == 1000 * bits


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 16, 100, 256, 257, 4096, 1 << 15, 65_537, 1 << 24, (1 << 31) - 1])
@pytest.mark.parametrize("numel", [0, 1, 2, 7, 1001])
def test_places_come_back(numel, size, dtype):
    places = torch.randint(size, (numel,), generator=torch.Generator().manual_seed(size), dtype=dtype)
    places[:2] = torch.tensor([size - 1, 0][:numel], dtype=dtype)
    before = places.clone()
    packed = pack_places(places, size)
    assert packed.dtype == torch.uint8
    assert packed.numel() == places_bytes(numel, size)
    assert torch.equal(unpack_places(packed, numel, size).to(dtype), places)
    assert torch.equal(places, before)
    assert places_bytes(8000, size) == 1000 * math.ceil(math.log2(size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 15, 48, 49, 55, 1001, 300_003])
def test_signs_are_packed_as_codes_are(numel, dtype):
    tensor = torch.randn(numel + 3, generator=torch.Generator().manual_seed(numel)).to(dtype)[3:]
    tensor[1:3] = -0.0
    expected = torch.tensor(np.where(tensor.double().numpy() >= 0, 1, 0), dtype=torch.uint8)
    assert torch.equal(pack_signs(tensor), pack_codes(expected, 2))
    assert torch.equal(unpack_codes(pack_signs(tensor), numel, 2), expected)

"""Random words: known answers, and the same from Triton."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.code_lanes import WORDS, code_lanes
from relaxcomm.kernels.philox import key_of, philox
from relaxcomm.tensors.segments import Segments
from tests.kernels.interpreter import DEVICE


def words(key, lane, third):
    return [word.item() for word in philox(key, torch.tensor([lane]), torch.tensor([third]))]


def test_known_answers():
    """Of Random123's kat_vectors, philox4x32 with 10 rounds: those whose counter this room can ask for."""
    assert words((0, 0), 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_the_product_is_exact():
    """As Python's whole numbers compute it, for the largest words."""

    def expected(c, k):
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = (b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF
            k = (k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF
        return list(c)

    for key, lane, third in (((2**31 - 1, 2**31 - 1), 2**32 - 1, 1), ((5, 7), 2**40 + 12345, 0)):
        assert words(key, lane, third) == expected((lane & 0xFFFFFFFF, lane >> 32, third, 0), key)


def test_words_are_even_and_differ_by_key_and_lane():
    lanes, zero = torch.arange(10_000), torch.zeros(10_000, dtype=torch.int64)
    drawn = torch.stack(philox(key_of(3), lanes, zero)).double() / 2**32
    assert drawn.unique().numel() > 39_990
    assert (drawn.mean(1) - 0.5).abs().max() < 0.02
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 0.05
    assert not torch.equal(philox(key_of(4), lanes, zero)[0], philox(key_of(3), lanes, zero)[0])


@pytest.mark.parametrize("num_codes", [2, 3, 4, 16, 256])
@pytest.mark.parametrize("segments", [Segments(1001, 8), Segments(1001, None, (1000, 1)), Segments(1, 8)])
def test_every_entry_has_a_word_of_its_own(segments, num_codes):
    lanes = code_lanes(segments, num_codes)
    drawn = lanes.words(key_of(1), DEVICE)
    assert drawn.shape == (segments.numel,)
    assert drawn.unique().numel() == segments.numel
    assert lanes.parts * lanes.digits >= WORDS
    assert lanes.parts * lanes.lanes >= lanes.num_bytes

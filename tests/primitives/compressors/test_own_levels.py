"""Messages whose levels or bytes are a plug-in's own, which make and read them themselves."""

from dataclasses import dataclass

import pytest
import torch

from relaxcomm.kernels.dispatch import has_numba
from relaxcomm.kernels.level_sums import takes
from relaxcomm.plugin import Dense, Quantized, Segments, Several, pack_codes, unpack_codes
from relaxcomm.primitives.compressors.weighted_sum import sum_quantized
from relaxcomm.primitives.exchanges.message_rows import scatter

BLOCK = 64


@dataclass(frozen=True, eq=False)
class Squares(Quantized):
    """Entries are -4, -1, 0, 1 or 4 times the step of their block."""

    def add_to(self, total, weight):
        levels = unpack_codes(self.codes, self.segments.numel, self.num_codes).to(total.dtype) - 2
        steps = self.steps.repeat_interleave(BLOCK).to(total.dtype)
        total.add_(levels * levels.abs() * steps, alpha=weight)


@pytest.mark.parametrize("blocks", [2, 1 << 14])
def test_levels_that_are_not_evenly_spaced(blocks):
    numel = blocks * BLOCK
    codes = torch.randint(5, (numel,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    steps = torch.linspace(0.5, 1.0, blocks)
    message = Squares(pack_codes(codes, 5), steps, torch.empty(0), 5, Segments(numel, BLOCK))
    levels = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0])[codes.long()]
    total = sum_quantized([(0.5, message)], torch.empty(numel))
    assert torch.equal(total, 0.5 * levels * steps.repeat_interleave(BLOCK))
    if blocks > 2 and has_numba():
        assert takes(total, [message])  # as of evenly spaced ones


class Turned(Dense):
    """Its bytes are those of a dense message the other way round."""

    def pack(self):
        return super().pack().flip(0)

    def unpack(self, data):
        return super().unpack(data[: self.num_bytes].flip(0))


def test_a_message_packs_itself_alone_among_others_and_in_rows():
    one, two = Turned(torch.tensor([1.0, 2.0])), Turned(torch.tensor([3.0]))
    found = Several((one, two)).unpack(Several((one, two)).pack()).messages
    rows = next(scatter([one, two])).tensor
    for like, again, row in zip((one, two), found, rows, strict=True):
        assert torch.equal(again.tensor, like.tensor)
        assert torch.equal(like.unpack(row).tensor, like.tensor)

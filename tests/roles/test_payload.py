"""Payloads that derive from others."""

import pytest
import torch

import relaxcomm
from relaxcomm import Algorithm, Rule, simulate
from relaxcomm.plugin import frozen
from relaxcomm.primitives import all_gather, deltas, error_feedback, quantize

NUMEL = 100_000  # entries of a bucket for which compressors have kernels


class _nothing:
    def read(self, cx, bucket, state, out):
        return super().read(cx, bucket, state, out).zero_()


@frozen
class nothing(_nothing, deltas):
    """Nothing of the deltas, by a mixin."""

    facts = deltas().facts


@frozen
class halves(deltas):
    """Half of the deltas."""

    facts = deltas().facts

    def read(self, cx, bucket, state, out):
        return super().read(cx, bucket, state, out).mul_(0.5)


@frozen
class halves_again(halves):
    """As halves."""

    facts = deltas().facts


@pytest.mark.parametrize("coder", [quantize(bits=8), error_feedback(compressor=quantize(bits=8))])
@pytest.mark.parametrize(
    ("payload", "share"), [(nothing, 0), (halves, 0.5), (halves_again, 0.5), (deltas, 1)]
)
def test_its_own_read_is_called_where_a_compressor_could_make_the_bases_difference(payload, share, coder):
    def train(group):
        model = torch.nn.Linear(NUMEL, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        rule = Rule(payload=payload(), exchange=all_gather(), compressor=coder)
        with relaxcomm.attach(
            model, optimizer, {"algorithm": Algorithm((rule,), name="mine")}, process_group=group
        ):
            (-model(torch.ones(1, NUMEL)).sum()).backward()
            optimizer.step()
        return model.weight.detach()

    for weight in simulate(train, 2):
        torch.testing.assert_close(weight, torch.full_like(weight, share))

"""The exchange that suits a compressor takes its messages, and sends no more than it must."""

from __future__ import annotations

import pytest

from relaxcomm.plugin import exchange_cost, one_tensor
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    cast,
    chain,
    error_feedback,
    exchange_for,
    identity,
    minmax_uint8,
    power_sgd,
    qsgd,
    quantize,
    random_k,
    scatter_gather,
    sign,
    terngrad,
    top_k,
)
from relaxcomm.topology import complete


@pytest.mark.parametrize("compressor", [identity(), cast(dtype="bfloat16"), power_sgd(matrix_rank=2)])
def test_what_the_network_can_sum_is_summed(compressor):
    assert exchange_for(compressor) == all_reduce()


@pytest.mark.parametrize(
    "compressor",
    [quantize(bits=8), quantize(bits=2), minmax_uint8(), qsgd(levels=7), terngrad(), sign()],
)
def test_means_that_can_be_coded_as_short_are_scattered(compressor):
    assert exchange_for(compressor) == scatter_gather()


@pytest.mark.parametrize(
    "compressor",
    [
        top_k(density=0.01),
        chain(compressors=(top_k(density=0.01), quantize(bits=4))),
        error_feedback(compressor=quantize(bits=4)),
        error_feedback(compressor=sign()),
    ],
)
def test_what_is_sparse_or_keeps_a_rest_is_gathered(compressor):
    """The mean of sparse messages has more entries than any of them; a rest belongs to its parameter."""
    assert exchange_for(compressor) == all_gather()


@pytest.mark.parametrize("size", [3, 4, 16])
@pytest.mark.parametrize("compressor", [identity(), quantize(bits=8), random_k(density=0.01)])
def test_it_sends_no_more_than_gathering(compressor, size):
    chosen, gathered = (
        exchange_cost(exchange, compressor, one_tensor(1_000_000), 4, size, complete()).sent_bytes
        for exchange in (exchange_for(compressor), all_gather())
    )
    assert chosen <= gathered

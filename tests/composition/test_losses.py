"""Rules whose compressors lose something, or send it more than once, are warned of."""

from __future__ import annotations

import warnings

import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from relaxcomm.primitives import all_gather, all_reduce, deltas, ef21, elastic_difference, error_feedback


def test_points_that_lose_a_part_are_warned_of():
    """What a message of the parameters leaves out, a residual cannot give back: the model is without it."""
    lossy, points = (
        primitives.error_feedback(compressor=primitives.top_k(density=0.1)),
        primitives.parameters(),
    )
    with pytest.warns(relaxcomm.CompositionWarning, match="the model loses it, too") as told:
        relaxcomm.Rule(payload=points, compressor=lossy, exchange=primitives.all_gather())
    assert told[0].filename == __file__, "who composes is told where"
    relaxcomm.Rule(payload=primitives.deltas(), compressor=lossy, exchange=primitives.all_gather())
    within = primitives.choco_gossip(gamma=0.4)
    relaxcomm.Rule(payload=points, compressor=lossy.compressor, exchange=within)


REPEATED = [
    (elastic_difference(beta=0.9), primitives.random_k(density=0.1), all_reduce()),
    (deltas(merge=0.9), primitives.top_k(density=0.1), all_gather()),
]


@pytest.mark.parametrize(("payload", "lossy", "exchange"), REPEATED)
def test_a_residual_of_a_distance_that_stays_is_warned_of(payload, lossy, exchange):
    """What comes of it grows: with random_k parameters of 3.6 become 7,000 within 120 steps."""
    with pytest.warns(relaxcomm.CompositionWarning, match="counts several times .* inside ef21"):
        relaxcomm.Rule(payload=payload, compressor=error_feedback(compressor=lossy), exchange=exchange)
    with pytest.warns(relaxcomm.CompositionWarning, match="put it inside ef21"):
        relaxcomm.Rule(payload=payload, compressor=lossy, exchange=exchange)


@pytest.mark.parametrize(
    ("payload", "compressor"),
    [
        (elastic_difference(beta=0.9), error_feedback(compressor=primitives.sign())),
        (elastic_difference(beta=0.9), ef21(compressor=primitives.top_k(density=0.1))),
        (deltas(merge=0.0), error_feedback(compressor=primitives.top_k(density=0.1))),
    ],
)
def test_what_arrives_soon_or_is_used_up_is_not(payload, compressor):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relaxcomm.Rule(payload=payload, compressor=compressor, exchange=all_gather())


NOISY = [
    error_feedback(primitives.qsgd()),
    error_feedback(primitives.terngrad()),
    error_feedback(primitives.count_sketch(size=1000)),
    error_feedback(primitives.quantize(bits=1), decay=0.9),
    error_feedback(primitives.chain(compressors=(primitives.top_k(density=0.1), primitives.qsgd()))),
    primitives.momentum_correction(primitives.qsgd(), momentum=0.1),
]
CALM = [
    error_feedback(primitives.qsgd(), decay=0.7),
    error_feedback(primitives.qsgd(levels=11)),
    error_feedback(primitives.quantize(bits=2)),
    error_feedback(primitives.count_sketch(size=1000), decay=0.1),
    error_feedback(
        primitives.chain(compressors=(primitives.top_k(density=0.5), primitives.quantize(bits=2)))
    ),
]


@pytest.mark.parametrize("compressor", NOISY + CALM, ids=repr)
def test_a_residual_that_grows_is_warned_of(compressor):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        accepts = all_reduce() if "sketch" in repr(compressor) else all_gather()
        relaxcomm.Rule(payload=primitives.gradients(), compressor=compressor, exchange=accepts)
    drawn = torch.randn(40, 5000, generator=torch.Generator().manual_seed(1)).unbind()
    arrived = relaxcomm.round_trip(compressor, drawn)
    grows = not bool(arrived[-1].norm() < 8 * drawn[-1].norm())
    assert [("the residual grows" in str(one.message)) for one in told] == [True] * grows
    assert (compressor in NOISY) == grows

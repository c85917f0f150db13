"""A plug-in that asks for a maximum before it takes a mean, over every exchange or refused by it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import relaxcomm
from relaxcomm import Rule, primitives
from relaxcomm.plugin import Coding, Compressor, CompressorFacts, Context, Dense, Maximum, State, frozen
from tests.engine.harness import engine_state, in_process, on_gloo

RELAXCOMM_PROTOCOL = 2
SIZES = (40, 3, 90)


@frozen
class log_mean_exp(Compressor):
    """`log((1/N) sum_n exp(x_n))`, in which no exponential overflows.

    Example:
        >>> log_mean_exp()
        log_mean_exp()
    """

    facts: ClassVar[CompressorFacts] = replace(
        primitives.identity.facts,
        kinds=frozenset({"maximum", "dense"}),
        rounds=2,
        linear=False,
        follows_results=True,
        keeps_finite=False,
    )

    def encode_decode(self, cx: Context, tensor: torch.Tensor, state: State, *, keep_sent: bool) -> Coding:
        largest = Maximum.of((yield Maximum(tensor.clone())))
        parts = yield Dense((tensor - largest).exp())
        mean = sum(weight * message.tensor for weight, message in parts)
        return largest + mean.log(), tensor if keep_sent else None

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return 2 * numel * element_bytes


@frozen
class _peak(Compressor):
    """The largest of all workers' entries, in one message."""

    facts: ClassVar[CompressorFacts] = replace(
        primitives.identity.facts, kinds=frozenset({"maximum"}), linear=False
    )

    def encode_decode(self, cx: Context, tensor: torch.Tensor, state: State, *, keep_sent: bool) -> Coding:
        return Maximum.of((yield Maximum(tensor.clone()))), tensor

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel * element_bytes


def wanted(rank, dtype):
    """The gradients of a rank, far beyond where exp overflows, and below where it vanishes."""
    drawn = torch.Generator().manual_seed(rank)
    return [3000 * torch.randn(size, dtype=torch.float64, generator=drawn).to(dtype) for size in SIZES]


def combined(world, exchange, compressor, dtype, spoilt=None):
    """The gradients after backward, of a model that lies in several buckets."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size, dtype=dtype)) for size in SIZES])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rule = Rule(payload=primitives.gradients(), exchange=exchange, compressor=compressor)
    algorithm = relaxcomm.Algorithm((rule,), name="maximum")
    config = {"algorithm": algorithm, "bucket_bytes": 256}
    with world.attach(model, optimizer, config) as engine:
        gradients = wanted(world.rank, dtype)
        if world.rank == spoilt:
            gradients[0][7] = math.nan
        sum((p * g).sum() for p, g in zip(model, gradients, strict=True)).backward()
        assert len(engine_state(engine)["layout"]) >= 2
        return torch.cat([p.grad for p in model]).clone()


@pytest.mark.parametrize("exchange", [primitives.all_reduce(), primitives.all_gather()], ids=repr)
@pytest.mark.parametrize("run", [in_process, pytest.param(on_gloo, marks=pytest.mark.ranks)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_mean_is_taken_of_what_would_overflow(run, exchange, dtype):
    stacked = torch.stack([torch.cat(wanted(rank, dtype)) for rank in range(3)]).double()
    expected = torch.logsumexp(stacked, 0) - math.log(3)
    exact = {"rtol": 1e-12, "atol": 0} if dtype == torch.float64 else {"rtol": 2**-7, "atol": 0}
    for found in run(combined, 3, exchange, log_mean_exp(), dtype):
        torch.testing.assert_close(found.double(), expected, **exact)
    for found in run(combined, 3, exchange, _peak(), dtype):
        assert torch.equal(found.double(), stacked.amax(0))


@pytest.mark.parametrize("exchange", [primitives.all_reduce(), primitives.all_gather()], ids=repr)
@pytest.mark.parametrize("spoilt", [0, 1, 2])
@pytest.mark.parametrize("run", [in_process, pytest.param(on_gloo, marks=pytest.mark.ranks)])
def test_no_nan_is_hidden(run, exchange, spoilt):
    with pytest.raises(Exception, match="NaN or infinity"):
        run(combined, 3, exchange, _peak(), torch.float64, spoilt)


@pytest.mark.parametrize(
    "exchange",
    [
        primitives.gossip(),
        primitives.scatter_gather(),
        primitives.vote(),
        primitives.hierarchical_all_reduce(),
        primitives.group_all_reduce(),
        primitives.push_sum(),
        primitives.pairwise(),
        primitives.choco_gossip(gamma=0.5),
        primitives.dcd_gossip(),
        primitives.averaging_server(),
        primitives.server(staleness=1),
    ],
    ids=repr,
)
def test_other_exchanges_refuse_it(exchange):
    with pytest.raises(relaxcomm.CompositionError, match="makes maximum messages, which"):
        Rule(payload=primitives.parameters(), exchange=exchange, compressor=_peak())


def test_compressors_around_it():
    """What codes with it passes its messages on, or refuses it where each part would see its own worker."""
    assert primitives.error_feedback(compressor=_peak()).facts.kinds == _peak().facts.kinds
    assert primitives.exchange_for(log_mean_exp()) == primitives.all_reduce()
    with pytest.raises(relaxcomm.CompositionError, match="maximum"):
        primitives.chain(compressors=(primitives.top_k(density=0.5), _peak()))


def test_whole_numbers_have_a_maximum_too():
    parts = [(1.0, Maximum(torch.tensor(values))) for values in ([1, 5], [3, -2])]
    assert Maximum.of(parts).tolist() == [3, 5]


def test_the_contract_holds_for_such_a_plug_in():
    found = relaxcomm.check(Path(__file__))
    assert len(found) > 5
    assert [str(one) for one in found if one.fault] == []

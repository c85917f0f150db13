"""Which parameters share a bucket, by what is sent of them and from where."""

from dataclasses import replace

import pytest
import torch

from relaxcomm import Algorithm, CompositionError, Rule
from relaxcomm.config import load
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.engine.attaching.model_checks import check_buckets
from relaxcomm.primitives import (
    adaptive_top_k,
    all_gather,
    cast,
    chain,
    chunk_top_k,
    deltas,
    dgc,
    error_feedback,
    gaussian_k,
    gradients,
    identity,
    scatter_gather,
    server,
    switch,
    top_k,
)
from relaxcomm.primitives.compressors import sparsifier
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.messages import MOST_PLACES
from relaxcomm.testing import PretendGpu
from tests.engine.harness import in_process

MIB, ALL_GATHER = 1 << 20, all_gather()


@pytest.mark.parametrize(
    ("algorithm", "first"),
    [("bsp", "ab"), ("delayed_sgd", "abcd"), ("signsgd", "abcd"), ("local_sgd", "abcd")],
    ids=str,
)
def test_only_entries_of_a_gpus_gradients_are_sent_early(algorithm, first):
    def first_of(device: str) -> str:
        items = [Item(name, torch.zeros(MIB // 8, device=device)) for name in "abcdef"]
        return "".join(fill_buckets(items, list("abcdef"), parse_algorithm(algorithm), 2 * MIB, 2)[0])

    with PretendGpu():
        assert first_of("cuda") == first
    assert first_of("cpu") == first_of("meta") == "abcd"  # the latter is how a plan is made


COMPRESSORS = [
    top_k(density=0.01),
    error_feedback(gaussian_k(density=0.01)),
    chain(compressors=(dgc(density=0.01), cast(dtype="float16"))),
    switch(first=identity(), then=top_k(density=0.01), steps=10),
    adaptive_top_k(),
]


def rule_of(compressor, exchange=ALL_GATHER):
    return Rule(payload=deltas(), exchange=exchange, compressor=compressor)


def filled(compressor, *numels, shards=1, exchange=ALL_GATHER):
    """The buckets of tensors that have no memory."""
    items = [
        Item(str(index), torch.empty(-(-numel // shards), device="meta"), *sharded)
        for index, numel in enumerate(numels)
        for sharded in [() if shards == 1 else (torch.empty(numel, device="meta"), shards)]
    ]
    names = [item.name for item in items]
    algorithm = Algorithm((rule_of(compressor, exchange),))
    return fill_buckets(items, names, algorithm, bucket_bytes=25 * MIB, world_size=3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda one: type(one).__name__)
def test_more_entries_than_an_index_tells_are_refused(compressor):
    assert filled(compressor, MOST_PLACES) == [("0",)]
    with pytest.raises(CompositionError) as raised:
        filled(compressor, MOST_PLACES - 5, 6)
    for part in (repr(compressor), "at most 2,147,483,647", "2,147,483,648", "bucket_bytes", "chunk_top_k"):
        assert part in str(raised.value)


def test_shards_buckets_and_blocks_may_have_as_many():
    assert filled(error_feedback(top_k(density=0.01)), 2 * MOST_PLACES, shards=2) == [("0",)]
    each = error_feedback(top_k(density=0.01, scope="bucket"))
    assert filled(each, MOST_PLACES, MOST_PLACES) == [("0",), ("1",)]
    assert filled(error_feedback(chunk_top_k(num_kept=1, chunk_size=64)), 1 << 32) == [("0",)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exchange", [scatter_gather(server_feedback=True), server(staleness=3)], ids=str)
def test_where_each_part_is_coded_on_its_own_its_entries_count(exchange):
    compressor = error_feedback(top_k(density=0.01))
    assert filled(compressor, 3 * MOST_PLACES, exchange=exchange) == [("0",)]
    with pytest.raises(CompositionError, match="each of the 3 parts of the bucket of 0 has 2,147,483,648"):
        filled(compressor, 3 * MOST_PLACES + 1, exchange=exchange)


@pytest.mark.parametrize("payload", [gradients(), deltas()], ids=str)
def test_attach_refuses_them_on_every_rank(payload, monkeypatch):
    monkeypatch.setattr(sparsifier, "MOST_PLACES", 10)

    def rank(world):
        model = torch.nn.Linear(5, 2)  # of 12 entries
        algorithm = Algorithm((replace(rule_of(error_feedback(top_k(density=0.5))), payload=payload),))
        before = model.weight.detach().clone()
        with pytest.raises(CompositionError, match=r"at most 10 entries at once, .* has 12"):
            world.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), {"algorithm": algorithm})
        assert torch.equal(model.weight, before)

    in_process(rank, 3)


@pytest.mark.parametrize("payload", [gradients(), deltas()], ids=str)
def test_a_switch_to_them_changes_nothing(payload, monkeypatch):
    """The engine goes on with the algorithm that it has."""
    monkeypatch.setattr(sparsifier, "MOST_PLACES", 10)

    def rank(world):
        model = torch.nn.Linear(5, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        large = Algorithm((replace(rule_of(error_feedback(top_k(density=0.5))), payload=payload),))
        with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
            for step in range(4):
                if step == 2:
                    with pytest.raises(CompositionError, match="at most 10 entries at once"):
                        engine.switch(large)
                model(torch.full((1, 5), 1.0 + world.rank)).sum().backward()
                optimizer.step()
        return engine.statistics["synchronisations"], model.weight.tolist()

    first, *others = in_process(rank, 3)
    assert first[0] == 4
    assert all(other == first for other in others)


def test_an_elastic_run_counts_with_the_fewest_ranks_that_may_be_left():
    rule = rule_of(error_feedback(top_k(density=0.01)), scatter_gather(server_feedback=True))
    algorithm, items = Algorithm((rule,)), [Item("0", torch.empty(3 * MOST_PLACES, device="meta"))]
    check_buckets(items, algorithm, load({"algorithm": algorithm}), 3)
    elastic = load({"algorithm": algorithm, "membership": {"elastic": True, "quorum": 2}})
    with pytest.raises(CompositionError, match="each of the 2 parts"):
        check_buckets(items, algorithm, elastic, 3)

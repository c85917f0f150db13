"""The rest of an epoch is dealt out among other ranks: no sample comes twice, and few sit out."""

from __future__ import annotations

from hypothesis import given, strategies as st

from relaxcomm.carry.loaders import carried_loaders
from relaxcomm.data import ShareLoader, ShareSampler, by_label
from relaxcomm.data.position import Position, Progress
from relaxcomm.network.transport import Membership

SIZE = 101


def samplers(world_size: int, batch_size: int, drop_last: bool, saved=None, **options):
    made = []
    for rank in range(world_size):
        progress = Progress()
        if saved is not None:
            progress.restore(saved)
        settings = {"batch_size": batch_size, "drop_last": drop_last, "seed": 3, "progress": progress}
        made.append(ShareSampler(SIZE, membership=Membership(rank, world_size), **settings, **options))
    return made


def read(sampler: ShareSampler, count: int) -> tuple[list[int], dict]:
    """The samples of so many batches of an epoch, and the place behind them as a checkpoint has it."""
    reading = sampler.progress.begin()
    batches = list(sampler._read(reading))
    kept = [*zip(batches, reading.drawn, strict=True)][:count]
    position = kept[-1][1][1] if kept else reading.position
    ended = len(kept) == len(batches)
    saved = sampler.progress.export()
    if not ended:
        saved |= {"epoch": reading.epoch, "place": list(position)}
        saved["dealt"] = [
            [epoch, [[list(p) for p in one] for one in sampler.progress.dealt(epoch)]]
            for epoch in (reading.epoch,)
            if sampler.progress.dealt(epoch)
        ]
    return [index for batch, _ in kept for index in batch], {"kind": ["data", SIZE], "anew": False, **saved}


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.booleans(),
    st.integers(1, 5),
    st.data(),
)
def test_an_epoch_is_read_once(changes, drop_last, last_size, data):
    """Through several numbers of ranks and batch sizes; ranks may have come to different places."""
    saved, seen = None, []
    for world_size, batch_size, batches in changes:
        states = []
        for sampler in samplers(world_size, batch_size, drop_last, saved):
            if sampler.epoch:
                return  # the epoch is over
            indices, state = read(sampler, data.draw(st.integers(0, batches)))
            seen += indices
            states.append([state])
        (saved,) = carried_loaders(states)
    last = samplers(last_size, 3, drop_last, saved)
    for epoch in range(saved["epoch"] + 1):
        seen_now = [i for sampler in last for i in sampler.share(epoch)] if epoch == saved["epoch"] else []
        seen += seen_now
    if saved["epoch"] == 0:
        assert len(seen) == len(set(seen)) > SIZE - last_size * (3 if drop_last else 1)
    following = [i for sampler in last for i in sampler.share(saved["epoch"] + 2)]
    unit = last_size * (3 if drop_last else 1)
    assert len(following) == len(set(following)) == SIZE // unit * unit


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=2, max_size=4),
    st.integers(2, 5),
    st.booleans(),
)
def test_no_batch_of_the_rest_is_one_sample_alone(changes, batch_size, has_parts):
    """BatchNorm raises on one, on every worker, and again after every restart."""
    options = {"partition": by_label(), "labels": [at % 5 for at in range(SIZE)]} if has_parts else {}
    saved, seen = None, []
    for world_size, batches in changes:
        new = samplers(world_size, batch_size, False, saved, **options)
        if new[0].epoch:
            return
        expected, lengths = [one.batches_left for one in new], {len(one.share(0)) for one in new}
        is_rest = bool(saved and saved["dealt"])
        sizes = [
            [len(batch) for batch in one] for one in samplers(world_size, batch_size, False, saved, **options)
        ]
        assert sizes == [sizes[0]] * world_size
        assert [len(one) for one in sizes] == expected
        if is_rest:
            assert lengths == ({sum(sizes[0])} if sizes[0] else lengths & {0, 1}), (
                "all are read, but one alone"
            )
            assert all(1 < size <= batch_size + 1 for size in sizes[0])
        read_now = [read(one, batches) for one in new]
        seen += [index for indices, _ in read_now for index in indices]
        (saved,) = carried_loaders([[state] for _, state in read_now])
        assert has_parts or len(seen) == len(set(seen))


def test_where_one_sample_is_the_batch_size_the_rest_is_read_by_ones():
    (saved,) = carried_loaders([[read(one, 30)[1]] for one in samplers(3, 1, drop_last=False)])
    rest = samplers(2, 1, drop_last=False, saved=saved)
    assert [[len(batch) for batch in one] for one in rest] == [[1] * 5] * 2


def test_ranks_in_different_epochs_read_what_is_left_of_each():
    """Without a common step one may be done with an epoch that another is still in."""
    ahead, behind = samplers(2, 5, drop_last=False)
    first, _ = read(ahead, 99)
    begun, later = read(ahead, 2)
    slow, state = read(behind, 4)
    (saved,) = carried_loaders([[later], [state]])
    assert saved["epoch"] == 0
    new = samplers(3, 5, drop_last=False, saved=saved)
    of_first = first + slow + [i for one in new for i in one.share(0)]
    assert len(of_first) == len(set(of_first)) > SIZE - 3
    of_second = begun + [i for one in new for i in one.share(1)]
    assert len(of_second) == len(set(of_second)) > SIZE - 3


def test_with_parts_each_reads_on_as_far_as_they_were_on_average():
    labels = [index % 4 for index in range(SIZE)]
    old = samplers(4, 5, drop_last=False, partition=by_label(), labels=labels)
    (saved,) = carried_loaders([[read(one, 2)[1]] for one in old])
    new = samplers(2, 5, drop_last=False, saved=saved, partition=by_label(), labels=labels)
    assert [len(one.share(0)) for one in new] == [SIZE // 2 - 20] * 2
    assert Position(*saved["place"]) == Position(batches=2, unit=4)


def test_who_stands_at_the_end_of_an_epoch_begins_the_next_with_those_who_have_begun_it():
    """Its iteration ends there, so that all make as many."""
    loaders = [ShareLoader(range(SIZE), sampler, (0,)) for sampler in samplers(2, 8, drop_last=False)]
    batches = [iter(loader) for loader in loaders]
    assert len(list(batches[0])) == 7
    for _ in range(7):
        next(batches[1])
    kind = {"kind": ["data", SIZE], "anew": False}
    (saved,) = carried_loaders([[{**kind, **loader.progress.export()}] for loader in loaders])
    for loader in loaders:
        loader.progress.restore(saved)
        loader.share_among(Membership(loaders.index(loader), 2), at_once=True)
    assert next(batches[1], None) is None
    assert [len(list(loader)) for loader in loaders] == [7, 7]
    assert [loader.epoch for loader in loaders] == [2, 2]


def test_ranks_may_have_begun_to_read_kinds_of_data_in_another_order():
    """A worker that joins makes its loaders in the order of its own."""
    states = []
    for sampler in samplers(2, 5, drop_last=False):
        one, other = read(sampler, 2)[1], {**Progress().export(), "kind": ["validation", SIZE], "anew": False}
        states.append([one, other] if states else [other, one])
    saved = {one["kind"][0]: one for one in carried_loaders(states)}
    assert {kind: bool(one["dealt"]) for kind, one in saved.items()} == {"data": True, "validation": False}

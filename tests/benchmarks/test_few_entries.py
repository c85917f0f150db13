"""What an exchange of few entries costs, part by part."""

from itertools import chain

import pytest

from benchmarks import few_entries


@pytest.mark.parametrize(
    ("side", "parts"),
    [
        (
            "local_sgd 1 of 16",
            {"read deltas", "make u and select", "decode and add up", "residual", "write back"},
        ),
        ("local_sgd 2 bits", {"read deltas", "quantize", "decode and add up", "write back"}),
    ],
)
def test_every_part_is_timed_and_they_are_the_whole(side, parts):
    seconds = few_entries.measure(1 << 12, 2, 2, few_entries.SIDES[side])
    taken = {name: list(chain.from_iterable(rounds)) for name, rounds in seconds.items()}
    whole, copy = taken.pop(few_entries.WHOLE), taken.pop(few_entries.COPY)
    assert {"read deltas", "decode and add up", "write back", *parts} < set(taken)
    assert all(min(one) > 0 for name, one in taken.items() if name != few_entries.OTHERS)
    assert min(copy) > 0
    assert [sum(parts) for parts in zip(*taken.values(), strict=True)] == pytest.approx(whole)

"""Exchanges in which ranks pair off: one may rest in a turn, and not every number of workers will do."""

from functools import partial
from typing import ClassVar

import pytest
import torch

from relaxcomm import TopologyError
from relaxcomm.checks.exchange_facts_hold import exchange_checks
from relaxcomm.checks.finding import attempt
from relaxcomm.plugin import DENSE, Exchange, ExchangeFacts, Neighbors, Stage, finish, frozen


def pairs(size):
    return {(rank, other): 1 for rank in range(size) for other in ((rank + 1) % size, (rank - 1) % size)}


@frozen
class ring_pairs(Exchange):
    """Average with the right neighbour in even turns, with the left one in odd ones; of three one rests."""

    counts: str = "round"

    facts: ClassVar[ExchangeFacts] = ExchangeFacts(
        accepts=frozenset({DENSE}),
        collective=True,
        same_result=False,
        several_rounds=False,
        returns="mean",
        topology="complete",
        needs_fixed_graph=False,
        follows_parameters=False,
        memory="none",
        takes_divided=False,
        applies_outer=False,
        slots={},
        coding="whole",
        service={},
    )

    def peer(self, rank, size, turn):
        at = (rank - turn) % size
        if at >= size - size % 2:
            return None
        return (rank + (-1) ** at) % size

    def run(self, cx, tensor, compressor, state):
        rank, size = cx.membership.rank, cx.membership.world_size
        peer = self.peer(rank, size, getattr(cx, self.counts))
        coding = compressor.encode_decode(cx, tensor, state, keep_sent=False)
        message = next(coding)
        packed = message.pack()
        if peer is None:
            yield Neighbors({}, {})
            return finish(coding, [(1.0, message)])[0]
        got = yield Neighbors({peer: packed.clone()}, {peer: torch.empty_like(packed)})
        return finish(coding, [(0.5, message), (0.5, message.unpack(got[peer]))])[0]

    def stages(self, world_size, topology):
        return [
            Stage(
                Neighbors, share=(world_size - world_size % 2) / world_size, pairs=partial(pairs, world_size)
            )
        ]


@frozen
class among_certain(ring_pairs):
    """The same among certain numbers of workers alone."""

    numbers: tuple[int, ...] = (2, 4, 8)

    facts: ClassVar[ExchangeFacts] = ring_pairs.facts

    def check_graph(self, topology, world_size):
        if world_size not in self.numbers:
            raise TopologyError(f"takes {self.numbers} workers, not {world_size}")

    def peer(self, rank, size, turn):
        assert size in self.numbers
        return super().peer(rank, size, turn)


def faults(exchange):
    found = {name: attempt("it", name, run, 60).fault for name, run in exchange_checks(exchange).items()}
    return {name: fault for name, fault in found.items() if fault is not None}


@pytest.mark.parametrize("exchange", [ring_pairs(), among_certain(), among_certain(numbers=(6,))], ids=repr)
def test_what_is_right_passes(exchange):
    assert faults(exchange) == {}


def test_turns_that_follow_the_step_do_not_mix_where_most_steps_exchange_nothing():
    found = faults(ring_pairs(counts="step"))
    assert "not all ranks mix" in found["results"]
    assert found["results"].endswith("let turns follow cx.round, which counts exchanges")

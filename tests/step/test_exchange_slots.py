"""What an exchange keeps by `init`: given to `run`, saved, carried, and told apart from a compressor's."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from relaxcomm import Algorithm, CompositionError, Rule, attach, simulate, trajectory
from relaxcomm.plugin import frozen
from relaxcomm.primitives import all_gather, all_reduce, error_feedback, gradients, scatter_gather, top_k

CODER = error_feedback(compressor=top_k(density=0.5))


@frozen
class counting(all_gather):
    """Each rank counts, and sums up its rank: what becomes of both with other ranks differs."""

    facts = replace(all_gather.facts, slots={"count": "equal", "mine": "share"})

    def init(self, bucket):
        return {"count": bucket.zeros()[:1], "mine": bucket.zeros()}

    def run(self, cx, tensor, compressor, state):
        state["count"], state["mine"] = state["count"] + 1, state["mine"] + cx.membership.rank
        return (yield from all_gather.run(self, cx, tensor, compressor, state))


@frozen
class counting_parts(scatter_gather):
    facts = replace(scatter_gather.facts, slots=counting.facts.slots)

    def init(self, bucket):
        return counting().init(bucket)

    def run(self, cx, tensor, compressor, state):
        state["count"], state["mine"] = state["count"] + 1, state["mine"] + cx.membership.rank
        return (yield from scatter_gather.run(self, cx, tensor, compressor, state))


@frozen
class clashing(all_gather):
    facts = replace(all_gather.facts, slots={"residual": "share"})

    def init(self, bucket):
        return {"residual": bucket.zeros()}


def run(exchange, size, *, states=None, switch=False):
    """The slots of each rank after 3 steps, and its whole state."""
    algorithm = Algorithm((Rule(payload=gradients(), compressor=CODER, exchange=exchange),))

    def rank(group):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, optimizer, algorithm, process_group=group) as engine:
            if states is not None:
                engine.load_run_state_dict(engine.carry_run_state_dicts(states))
            else:
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.ones(1, 5)).sum().backward()
                    optimizer.step()
            if switch:
                engine.switch(Algorithm(algorithm.rules, name="again"))
            return copy.deepcopy(engine.run_state_dict())

    saved = simulate(rank, size)
    return [one["engine"]["slots"][0][2]["compressor"] for one in saved], saved


@pytest.mark.parametrize("exchange", [counting(), counting_parts()], ids=str)
def test_it_is_saved_and_carried_as_declared(exchange):
    slots, saved = run(exchange, 2)
    assert [one["count"].item() for one in slots] == [3, 3]
    assert [one["mine"][0].item() for one in slots] == [0, 3]
    assert any(name.endswith("residual") for name in slots[0])
    same, _ = run(exchange, 2, states=saved)
    assert all(
        torch.equal(one[name], other[name]) for one, other in zip(slots, same, strict=True) for name in one
    )
    more, _ = run(exchange, 3, states=saved)
    assert [one["count"].item() for one in more] == [3] * 3
    assert sum(one["mine"][0].item() for one in more) / 3 == pytest.approx(1.5)


def test_what_is_not_made_anew_is_carried_over_a_switch():
    slots, _ = run(counting(), 2, switch=True)
    assert [one["mine"][0].item() for one in slots] == [0, 3]


def test_a_name_that_the_compressor_has_is_refused():
    with pytest.raises(CompositionError, match=r"the slots \['residual'\] are made by init of clashing\(\)"):
        run(clashing(), 2)


@frozen
class half_anew(all_reduce):
    """`m <- (m + mean_n g_n) / 2`, in a slot as long as the bucket."""

    facts = replace(all_reduce.facts, takes_divided=False, slots={"mean": "equal"})

    def init(self, bucket):
        return {"mean": bucket.zeros()}

    def run(self, cx, tensor, compressor, state):
        mean = yield from all_reduce.run(self, cx, tensor, compressor, state)
        state["mean"] = (state["mean"] + mean) / 2
        return state["mean"].to(tensor.dtype)


def test_a_slot_as_long_as_the_bucket_fits_gradients_too():
    """No flags of used parameters lie behind them, of which the slot would know nothing."""
    found = trajectory(Rule(payload=gradients(), exchange=half_anew()), [[[2.0, 4.0], [6.0, 0.0]]] * 2)
    assert found.tolist() == [[[2.0, 1.0]] * 2, [[5.0, 2.5]] * 2]

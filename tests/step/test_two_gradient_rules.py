"""Two rules that exchange the gradients of one backward, the second after a vote."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import attach, simulate
from tests.engine.harness import assert_resumes

VOTED = {
    "trigger": {"relative_gradient_change": {"threshold": 0.0, "window_steps": 100}},
    "payload": "gradients",
    "exchange": "all_reduce",
}


def gradients_of(rules, topology, size):
    """Of four layers, in three steps."""

    def rank(group):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(size, size) for _ in range(4)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        found = []
        with attach(model, optimizer, {"algorithm": {"rules": rules}, **topology}, process_group=group):
            for step in range(3):
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(10 * step + group.rank())
                model(torch.randn(4, size, generator=generator)).square().mean().backward()
                found.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
                optimizer.step()
        return torch.stack(found)

    return simulate(rank, 4)


@pytest.mark.filterwarnings("ignore:.*gives every rank another gradient")
@pytest.mark.parametrize("size", [40, 300])  # those of 300 are taken one by one, as they come
def test_their_gradients_are_the_mean_over_all(size):
    first = {"payload": "gradients", "exchange": "group_all_reduce"}
    found = gradients_of([first, VOTED], {"topology": {"hierarchical": {"sizes": 2}}}, size)
    expected = gradients_of([{"payload": "gradients", "exchange": "all_reduce"}], {}, size)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_late_gradient_is_resumed_by_the_rule_that_sent_it():
    gradients = {"payload": "gradients", "exchange": "all_reduce"}
    prompt = gradients | {"outer": "signs", "active": [0, 4]}
    late = gradients | {"delay": 2, "active": [4, None]}
    assert_resumes({"algorithm": {"rules": [prompt, late]}})

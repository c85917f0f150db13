"""Every bundled algorithm on a topology of groups: it runs, or it is refused with a reason and a way out."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import relaxcomm
from relaxcomm.config import registry
from relaxcomm.primitives import hierarchical_all_reduce
from tests.engine.harness import in_process, train, values
from tests.models import CASES, take_step

GROUPS = {"hierarchical": {"sizes": [2, 1]}}
NEEDED = {"adaptive_local_sgd": {"max_batch_size": 8}, "post_local_sgd": {"after_steps": 2}}
BUNDLED = sorted(name for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm")
REASONS = {
    "written_out": "for groups write its rules out, with the exchange hierarchical_all_reduce",
    "served": "answers each worker alone, so that groups have nothing to do together",
    "coded": r"groups add up messages, but those of .*coded anew",
    "own": "every rule has one of its own; leave topology out",
    "bipartite": "is not bipartite",
}
EXPECTED = {
    "selsync": "written_out",
    "fedavg": "written_out",
    "ssp": "served",
    "async_model_average": "served",
    "noloco": "own",
    "one_peer_exponential": "own",
    "low_precision_decentralized": "own",
    **dict.fromkeys(("topk_sgd", "gaussiank_sgd", "randomk_sgd", "dgc", "sparseloco", "ef21"), "coded"),
    **dict.fromkeys(("hierarchical_local_sgd", "d_psgd", "choco_sgd", "dcd_psgd", "sgp"), "runs"),
}


def outcome(name):
    """ "runs", or which reason was given."""
    config = {"algorithm": {"name": name, **NEEDED.get(name, {})}, "topology": GROUPS}
    try:
        relaxcomm.config.load(config)
        histories = in_process(train, 3, config, 3, "adamw" if name == "des_loc" else "plain")
    except (relaxcomm.CompositionError, relaxcomm.TopologyError) as error:
        return next((reason for reason, words in REASONS.items() if re.search(words, str(error))), str(error))
    assert all(np.isfinite(history[-1]).all() for history in histories)
    return "runs"


@pytest.mark.filterwarnings("ignore::relaxcomm.CompositionWarning")
@pytest.mark.parametrize("name", BUNDLED)
def test_each_runs_or_is_refused_with_a_reason(name):
    found = outcome(name)
    assert found == EXPECTED.get(name, found)
    assert found in {"runs", *REASONS}


def written_out(name, **parameters):
    """The same rules with the mean taken group by group."""
    algorithm = registry.algorithms()[name].build(**parameters)
    rules = tuple(dataclasses.replace(rule, exchange=hierarchical_all_reduce()) for rule in algorithm.rules)
    return dataclasses.replace(algorithm, rules=rules)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("selsync", {"threshold": 0.01, "window_steps": 3}),
        ("selsync", {"threshold": 0.01, "window_steps": 3, "aggregate": "gradients"}),
        ("diloco", {"steps": 5}),
        ("bsp", {}),
    ],
)
def test_written_out_it_is_the_same_algorithm(name, parameters):
    plain = in_process(train, 3, {"algorithm": {"name": name, **parameters}}, 20)
    grouped = in_process(train, 3, {"algorithm": written_out(name, **parameters), "topology": GROUPS}, 20)
    np.testing.assert_allclose(grouped, plain, rtol=1e-10, atol=1e-10)


def federated(world, algorithm, one):
    """A client's weight travels behind its entries."""
    case = CASES["toy"]
    model = case.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(31, 6, generator=draw, dtype=torch.float64),
        torch.randn(31, 4, generator=draw, dtype=torch.float64),
    )
    history = []
    config = {"algorithm": algorithm, "topology": one}
    with world.attach(model, optimizer, config) as engine:
        loader = engine.loader(data, batch_size=4)
        for _ in range(4):
            for x, y in loader:
                take_step(torch.nn.functional.mse_loss(model(x), y), optimizer)
            history.append(values(model))
    return history


def test_fedavg_over_groups():
    plain = in_process(federated, 3, "fedavg", "complete")
    grouped = in_process(federated, 3, written_out("fedavg"), GROUPS)
    np.testing.assert_allclose(grouped, plain, rtol=1e-10, atol=1e-10)

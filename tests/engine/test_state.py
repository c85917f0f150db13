"""Stop, save, rebuild, load, go on: bit for bit the run that was never interrupted."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from tests.engine.harness import World, values
from tests.engine.test_compositions import COMPOSITIONS
from tests.models import CASES, make_optimizer

STEPS = 14
CONFIGS = {
    "bsp": "bsp",
    "local_sgd": {"name": "local_sgd", "steps": 4},
    "post_local_sgd": {"name": "post_local_sgd", "steps": 3, "after_steps": 5},
    "slowmo": {"name": "slowmo", "steps": 3, "lr": 0.9, "momentum": 0.6},
    "diloco": {"name": "diloco", "steps": 4, "lr": 0.7, "momentum": 0.9},
    "fp16_gradients": {
        "rules": [
            {"payload": "gradients", "exchange": "all_reduce", "compressor": {"cast": {"dtype": "float16"}}}
        ]
    },
}
CONFIGS |= {name: {"rules": rules} for name, (rules, _, _) in COMPOSITIONS.items()}


def steps(case, model, optimizer, rank: int, span: range, history: list) -> None:
    for step in span:
        case.local_loss(model, step, rank).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(values(model))


def uninterrupted(world: World, algorithm, optimizer_name="adamw"):
    case, history = CASES["toy"], []
    model = case.model(seed=world.rank)
    optimizer = make_optimizer(optimizer_name, model)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        steps(case, model, optimizer, world.rank, range(STEPS), history)
        counted = {key: engine.statistics[key] for key in ("steps", "synchronisations")}
    return [*history, values(model)], counted


def interrupted(world: World, algorithm, stop: int, optimizer_name="adamw"):
    case, history, file = CASES["toy"], [], io.BytesIO()
    model = case.model(seed=world.rank)
    optimizer = make_optimizer(optimizer_name, model)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        steps(case, model, optimizer, world.rank, range(stop), history)
        parts = model, optimizer, engine
        torch.save([part.state_dict() for part in parts], file)
        steps(case, model, optimizer, world.rank, range(stop, stop + 1), [])  # what is saved does not change
    file.seek(0)
    model = case.model(seed=50 + world.rank)
    optimizer = make_optimizer(optimizer_name, model)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for part, state in zip((model, optimizer, engine), torch.load(file), strict=True):
            part.load_state_dict(state)
        steps(case, model, optimizer, world.rank, range(stop, STEPS), history)
        counted = {key: engine.statistics[key] for key in ("steps", "synchronisations")}
    return [*history, values(model)], counted


@pytest.mark.parametrize("stop", [1, 6, 9])
@pytest.mark.parametrize("name", CONFIGS)
def test_resumed_run_is_bit_identical(network, name, stop):
    whole = network(uninterrupted, 3, CONFIGS[name])
    resumed = network(interrupted, 3, CONFIGS[name], stop)
    for rank, ((expected, counts), (found, resumed_counts)) in enumerate(zip(whole, resumed, strict=True)):
        assert resumed_counts == counts
        for step, (wanted, got) in enumerate(zip(expected, found, strict=True)):
            np.testing.assert_array_equal(
                got, wanted, err_msg=f"rank {rank}, after step {step}, stopped at {stop}"
            )


def load_into_another(world: World):
    model = CASES["toy"].model(seed=0)
    with world.attach(model, make_optimizer("plain", model), {"algorithm": CONFIGS["diloco"]}) as engine:
        state = engine.state_dict()
    other = torch.nn.Linear(3, 2)
    with world.attach(other, make_optimizer("plain", other), {"algorithm": CONFIGS["slowmo"]}) as engine:
        engine.load_state_dict(state)


def test_the_state_of_another_algorithm_or_model_is_refused(network):
    with pytest.raises(Exception, match=r"[Aa]lgorithm|[Mm]odel|rules|parameters") as caught:
        network(load_into_another, 3)
    kinds = {
        kind for kind, _ in getattr(caught.value, "errors", {0: (type(caught.value).__name__, "")}).values()
    }
    assert kinds & {"ConfigError", "UsageError", "CompositionError"}, caught.value

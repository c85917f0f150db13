"""torch.compile'd modules, compiled before or after attach, are trained like the plain ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import references
from tests.engine.harness import World, on_gloo, simulated_workers, values
from tests.models import CASES, make_optimizer

pytestmark = pytest.mark.ranks
ALGORITHMS = {
    "bsp": ("bsp", references.bsp, ()),
    "local_sgd": ({"name": "local_sgd", "steps": 3}, references.local_sgd, (3,)),
}


def run(world: World, algorithm, when: str, backend: str):
    torch._dynamo.reset()
    case = CASES["toy"]
    model = case.model(seed=world.rank)
    optimizer = make_optimizer("momentum", model)
    compiled = torch.compile(model, backend=backend)
    if when == "in_place":
        model.compile(backend=backend)
        compiled = model
    attached = compiled if when == "attach_compiled" else model
    with world.attach(attached, optimizer, {"algorithm": algorithm}):
        for step in range(6):
            case.local_loss(compiled, step, world.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
        end = values(model)
    torch._dynamo.reset()
    return end


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("when", ["attach_plain", "attach_compiled", "in_place"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_compiled_model_equals_the_reference(name, when, backend):
    algorithm, reference, arguments = ALGORITHMS[name]
    expected = reference(simulated_workers(3), 6, *arguments)[-2]
    for rank, end in enumerate(on_gloo(run, 3, algorithm, when, backend)):
        np.testing.assert_allclose(end, expected[rank], rtol=1e-9, atol=1e-9)

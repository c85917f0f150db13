"""Training on several hosts, which are network namespaces here."""

import pytest

from tests.network_namespaces import hosts, run_everywhere

SCRIPT = """
import torch, relaxcomm

for algorithm in ALGORITHMS:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "timeout_seconds": 20}) as engine:
        draw = torch.Generator().manual_seed(engine._session.world.rank)
        for step in range(12):
            x = torch.randn(16, 8, generator=draw)
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"total {torch.nn.utils.parameters_to_vector(model.parameters()).double().sum().item():.12f}")
"""


@pytest.mark.root
@pytest.mark.ranks
def test_two_hosts_end_with_the_same_model():
    algorithms = ["bsp", "selsync", "ssp"]
    with hosts(2, rate="100mbit") as on:
        outputs = run_everywhere(on, SCRIPT.replace("ALGORITHMS", repr(algorithms)))
    first, second = (
        [line for line in output.splitlines() if line.startswith("total ")] for output in outputs
    )
    assert first == second
    assert len(first) == len(algorithms)
    assert all(abs(float(line.split()[1])) > 0 for line in first)

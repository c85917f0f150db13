"""Metrics of a job on two hosts, read from the one that does not have rank 0."""

from __future__ import annotations

import json

import pytest

from tests.network_namespaces import hosts, run_everywhere

pytestmark = [pytest.mark.ranks, pytest.mark.root]
SCRIPT = """
import json, os, urllib.request, warnings
import torch
import torch.distributed as dist
import relaxcomm

def fetch(url):
    return urllib.request.urlopen(url, timeout=60).read().decode()

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = {"algorithm": "bsp", "metrics": json.loads(os.environ["METRICS"]), "timeout_seconds": 120}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    engine = relaxcomm.attach(model, optimizer, config)
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
dist.barrier()
told, texts = None, []
if os.environ["RANK"] == "1" and config["metrics"]:
    told = json.loads(fetch(f"http://{os.environ['MASTER_ADDR']}:9400/sd"))
    texts = [fetch(f"http://{one['targets'][0]}/metrics") for one in told]
dist.barrier()
engine.close()
print(json.dumps([[str(one.message) for one in caught], told, texts]))
"""


def everywhere(found, metrics):
    printed = run_everywhere(found, SCRIPT, {"METRICS": json.dumps(metrics)})
    return [json.loads(text.splitlines()[-1]) for text in printed]


@pytest.mark.slow
def test_all_are_found_from_another_host():
    with hosts(2) as found:
        first, (warned, told, texts) = everywhere(found, {"address": "0.0.0.0", "run": "apart"})
    assert (first[0], warned) == ([], [])
    assert [one["targets"] for one in told] == [[f"{host.address}:9400"] for host in found]
    for rank, text in enumerate(texts):
        assert f'relaxcomm_step_seconds_count{{rank="{rank}",run="apart"}}' in text


@pytest.mark.slow
def test_loopback_is_told_once_with_the_key():
    with hosts(2) as found:
        (first, *_), (second, *_) = everywhere(found, {})
    assert len(first) == 1
    assert "spans 2 hosts" in first[0]
    assert "metrics.address" in first[0]
    assert second == []

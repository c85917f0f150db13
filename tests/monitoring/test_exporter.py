"""Who can read an exporter, where it is, and that it never stands in training's way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry

import relaxcomm
from benchmarks.ports import free_port
from relaxcomm.monitoring import addresses
from relaxcomm.monitoring.exporter import Exporter, Target
from relaxcomm.monitoring.metrics_settings import MetricsConfig
from tests.engine.harness import in_process, on_gloo
from tests.models import CASES, trainable
from tests.monitoring.harness import fetch
from tests.ranks import launch_script


def urls_of(world, config, steps=1):
    """Where each rank is after some training, and what rank 0's service discovery says."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": "bsp", "metrics": config}) as engine:
        for step in range(steps):
            CASES["toy"].local_loss(model, step, world.rank).backward()
            optimizer.step()
        found = json.loads(fetch(f"{engine.metrics_url}/sd")) if world.rank == 0 else None
        return engine.metrics_url, found


@pytest.mark.parametrize("network", [in_process, on_gloo])
def test_ports_count_up_and_rank_0_knows_all(network):
    port = free_port(3)
    found = network(urls_of, 3, {"port": port, "run": "a run"})
    assert [url for url, _ in found] == [f"http://127.0.0.1:{port + rank}" for rank in range(3)]
    expected = [
        {"targets": [f"127.0.0.1:{port + rank}"], "labels": {"rank": str(rank), "run": "a run"}}
        for rank in range(3)
    ]
    assert found[0][1] == expected
    # Closed exporters leave the ports to the next ones.
    assert [url for url, _ in network(urls_of, 3, {"port": port})] == [url for url, _ in found]


def test_runs_of_two_processes_in_the_same_second_have_different_names(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    settings = MetricsConfig()
    names = {addresses.name_run(settings, "bsp") for _ in range(8)}
    assert len(names) == 8
    assert addresses.name_run(MetricsConfig(run="mine"), "bsp") == "mine"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert addresses.name_run(settings, "bsp") == "bsp-7"


def test_runs_of_other_ranks_of_one_job_have_different_names(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    names = [addresses.name_run(MetricsConfig(), "bsp", first_rank=rank) for rank in (0, 2)]
    assert names == ["bsp-7", "bsp-7-rank2"]


def test_a_taken_port_is_a_warning_that_names_the_other_and_is_found():
    with socket.socket() as other:
        port = free_port(2)  # rank 1 gets its own, so that one warning comes
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.warns(relaxcomm.MetricsWarning, match=f"127.0.0.1:{port}, which is taken.*instead"):
            found = in_process(urls_of, 2, {"port": port})
    assert found[0][0] != f"http://127.0.0.1:{port}"
    assert found[0][1][0]["targets"] == [found[0][0].removeprefix("http://")]


@pytest.mark.parametrize("config", [{"address": "203.0.113.1"}, {"port": 65535}, {"address": "no such host"}])
def test_a_place_that_cannot_be_had_does_not_stop_training(config):
    with pytest.warns(relaxcomm.MetricsWarning, match="cannot be had"):
        in_process(unmeasured, 2, config)


def unmeasured(world, config):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": "bsp", "metrics": config}) as engine:
        CASES["toy"].local_loss(model, 0, world.rank).backward()
        optimizer.step()
        assert engine.statistics["steps"] == 1
        return engine.metrics_url


def test_a_log_alone_needs_no_port(tmp_path):
    config = {"algorithm": "bsp", "metrics": {"port": None}, "output": str(tmp_path)}

    def rank(world):
        with world.attach(CASES["toy"].model(), None, config) as engine:
            assert engine.metrics_url is None

    in_process(rank, 2)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_an_output_that_cannot_be_written_does_not_stop_training(tmp_path):
    (tmp_path / "file").touch()
    config = {"algorithm": "bsp", "metrics": {"port": None}, "output": str(tmp_path / "file")}
    with pytest.warns(relaxcomm.MetricsWarning, match="no run log"):
        in_process(lambda world: world.attach(CASES["toy"].model(), None, config).close(), 2)


def test_loopback_on_several_hosts_is_told_with_the_key(monkeypatch):
    names = iter(["a", "b"] * 9)
    monkeypatch.setattr(addresses.socket, "gethostname", lambda: next(names))
    with pytest.warns(relaxcomm.MetricsWarning, match=r"spans 2 hosts.*metrics\.address"):
        urls = [url for url, _ in in_process(urls_of, 2, {"port": 0})]
    assert len(set(urls)) == 2


def test_all_interfaces_are_not_warned_of_and_ranks_here_are_where_they_are_asked():
    found = in_process(urls_of, 2, {"port": 0, "address": "0.0.0.0"})
    port = found[0][0].rpartition(":")[2]
    assert found[0][1][0]["targets"] == [f"0.0.0.0:{port}"]  # asked as 0.0.0.0
    registry = CollectorRegistry()
    exporter = Exporter("0.0.0.0", 0, registry, "run")
    exporter.targets = [Target(0, "", exporter.port), Target(1, "10.0.0.7", 9400)]
    try:
        told = json.loads(fetch(f"http://localhost:{exporter.port}/sd"))
    finally:
        exporter.close()
    assert [one["targets"] for one in told] == [[f"localhost:{exporter.port}"], ["10.0.0.7:9400"]]


def test_a_silent_client_is_in_nobodys_way_and_other_paths_are_told():
    exporter = Exporter("127.0.0.1", 0, CollectorRegistry(), "run")
    try:
        with socket.create_connection(("127.0.0.1", exporter.port)):
            fetch(f"{exporter.url}/metrics")
            for path in ("/", "/sd", "/other"):  # only rank 0 knows where all are
                with pytest.raises(urllib.error.HTTPError, match="404") as told:
                    fetch(f"{exporter.url}{path}")
                told.value.close()
    finally:
        exporter.close()


@pytest.mark.parametrize(
    "section",
    [
        {"prot": 9400},
        {"port": 65536},
        {"port": "9400"},
        {"run": ""},
    ],
)
def test_bad_settings_are_refused_on_every_rank(section):
    with pytest.raises(relaxcomm.ConfigError, match="metrics"):
        in_process(urls_of, 2, section)


RESTARTED = """
import os, sys, time, urllib.request
import torch, torch.distributed as dist
import relaxcomm
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = {"algorithm": "bsp", "metrics": {"port": PORT, "run": "elastic"}, "timeout_seconds": 20}
engine = relaxcomm.attach(model, optimizer, config)
for step in range(5):
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and os.environ["RANK"] == "1":
        os._exit(3)
print(engine.metrics_url, flush=True)
dist.barrier()
if os.environ["RANK"] == "0":
    print(urllib.request.urlopen(engine.metrics_url + "/sd").read().decode(), flush=True)
engine.close()
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_an_elastic_restart_has_the_same_ports_again(tmp_path):
    port = free_port(3)
    script = tmp_path / "job.py"
    script.write_text(RESTARTED.replace("PORT", str(port)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "--max-restarts=1", str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        # Else torchrun keeps one store for all attempts, in which Gloo finds the addresses of ended ranks.
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for place in (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}", f'["127.0.0.1:{port + 1}"]'):
        assert place in done.stdout, done.stdout + done.stderr[-4000:]


def test_the_port_is_free_when_close_returns(monkeypatch):
    def slowly(server):  # as socket.close does it: who comes second returns at once
        number = server.socket.detach()
        if number >= 0:
            time.sleep(0.2)
            os.close(number)

    monkeypatch.setattr(WSGIServer, "server_close", slowly)
    exporter = Exporter("127.0.0.1", 0, CollectorRegistry(), "run")
    exporter.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", exporter.port))


FORKED = """
import socket, sys
import torch, relaxcomm
model = torch.nn.Linear(3, 2)
engine = relaxcomm.attach(model, None, {"algorithm": "bsp", "metrics": {"port": PORT}})
loader = torch.utils.data.DataLoader(torch.ones(8, 3), num_workers=1, multiprocessing_context="fork",
                                     persistent_workers=True)
batches = iter(loader)
next(batches)
engine.close()
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", PORT))
print("free")
"""


@pytest.mark.ranks
def test_forked_data_workers_do_not_keep_the_port():
    (done,) = launch_script(FORKED.replace("PORT", str(free_port(3))), 1)
    assert done.stdout.strip().endswith("free"), done.stderr[-2000:]

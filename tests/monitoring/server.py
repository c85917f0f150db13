"""A real Prometheus with the repository's configuration, and real training jobs for it to find."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from benchmarks.ports import free_port
from tests.monitoring.harness import fetch
from tests.ranks import PATIENCE_SECONDS, start_script
from tests.waiting import until

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
T = TypeVar("T")


@dataclass
class Prometheus:
    """Where a running server answers."""

    url: str

    def query(self, expression: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """The series that an expression has at a time, by default now."""
        asked = {"query": expression} | ({} if at is None else {"time": str(at)})
        answer = json.loads(fetch(f"{self.url}/api/v1/query?{urllib.parse.urlencode(asked)}"))
        assert answer["data"]["resultType"] == "vector", expression
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their health and state."""
        groups = json.loads(fetch(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def firing(self) -> set[tuple[str, str]]:
        """Name and rank of the alerts that fire."""
        alerts = json.loads(fetch(f"{self.url}/api/v1/alerts"))["data"]["alerts"]
        labels = [one["labels"] for one in alerts if one["state"] == "firing"]
        return {(one["alertname"], one.get("rank", "")) for one in labels}


@contextmanager
def prometheus(folder: Path, job_port: int, faster: int = 1, scrape: str = "1s") -> Iterator[Prometheus]:
    """The server, with the rules' durations divided by `faster`."""
    if shutil.which("prometheus") is None:
        pytest.skip("the Debian package prometheus is not installed")
    config = yaml.safe_load((DASHBOARDS / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": scrape, "scrape_timeout": scrape, "evaluation_interval": scrape}
    (found,) = config["scrape_configs"][0]["http_sd_configs"]
    found |= {"url": found["url"].replace("9400", str(job_port)), "refresh_interval": "1s"}
    rules = yaml.safe_load((DASHBOARDS / "prometheus/rules/relaxcomm.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule |= {key: hasten(rule[key], faster) for key in ("expr", "for") if key in rule}
    (folder / "rules").mkdir()
    (folder / "rules/relaxcomm.yml").write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--storage.tsdb.path={folder / 'data'}"], cwd=folder, stdout=log, stderr=log
        )
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        until(lambda: fetch(f"{server.url}/-/ready"), "Prometheus")
        yield server
    finally:
        process.kill()  # nobody needs its data any more
        process.wait()


def hasten(text: str, faster: int) -> str:
    """Durations such as 10m divided by a number."""
    return (
        re.sub(r"\b(\d+)m\b(?!\w)", lambda found: f"{int(found[1]) * 60_000 // faster}ms", text)
        if faster > 1
        else text
    )


SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
import relaxcomm

torch.set_num_threads(1)
folder, config, holds = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(960, 64), torch.randint(0, 8, (960,)))

def told(what):
    return (folder / what).exists()

engine = relaxcomm.attach(model, optimizer, config)
step, scale = 0, 1.0
while True:
    for x, y in engine.loader(data, batch_size=16):
        if told("loud"):
            scale = 30.0 if step % 2 else 1.0
        elif scale == 30.0:
            scale = 1.0
        if told("grow"):
            scale = min(scale * 1.004, 1e3)
        loss = scale * torch.nn.functional.cross_entropy(model(x), y)
        engine.observe(loss=loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if told("perturb") and rank == 2:
            with torch.no_grad():
                model[0].weight += torch.randn_like(model[0].weight)
        time.sleep(0.03 + (0.2 if told("slow") and rank == 1 else 0))
        step += 1
        if step in holds:
            with engine.averaged():
                engine.observe_evaluation(accuracy=step / 1000)
            part = folder / f"held-{step}.{rank}.part"
            part.write_text(json.dumps(engine.snapshot().as_json() | {"time": time.time()}))
            part.rename(folder / f"held-{step}.{rank}")
            while not told(f"go-{step}"):
                time.sleep(0.05)
    # Every rank sees the end at the same step.
    votes = torch.tensor([float(told("stop"))])
    torch.distributed.all_reduce(votes)
    if votes.item() == 3:
        break
while not told("close"):
    time.sleep(0.05)
engine.close()
"""


@dataclass
class Job:
    """A training job of three real workers, told what to do by files in its folder."""

    folder: Path
    port: int
    processes: list[ForkServerProcess]

    def tell(self, what: str) -> None:
        """Set one of the script's switches."""
        (self.folder / what).touch()

    def untell(self, what: str) -> None:
        """Take it back."""
        (self.folder / what).unlink()

    def held(self, step: int) -> list[dict[str, Any]]:
        """What each rank shows of itself where it holds after a step, and since when; waits for that."""
        paths = [self.folder / f"held-{step}.{rank}" for rank in range(3)]
        until(lambda: all(path.exists() for path in paths), f"step {step}")
        return [json.loads(path.read_text()) for path in paths]

    def end(self) -> None:
        """Let it close, and look how it went."""
        self.tell("stop")
        self.tell("close")
        for rank, process in enumerate(self.processes):
            process.join(PATIENCE_SECONDS)
            assert process.exitcode == 0, f"rank {rank}: {(self.folder / f'{rank}.err').read_text()[-2000:]}"


@contextmanager
def job(folder: Path, algorithm: Any, *, holds: Sequence[int] = ()) -> Iterator[Job]:
    """Start one, which holds after some steps; it is killed if it has not ended."""
    folder.mkdir(exist_ok=True)
    port = free_port(4)
    config: Mapping[str, Any] = {
        "algorithm": algorithm,
        "metrics": {"port": port, "run": "tested"},
        "output": str(folder),
        "timeout_seconds": 120,
    }
    processes = []
    for rank in range(3):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port + 3)}
        arguments = [str(folder), json.dumps(config), json.dumps(holds)]
        processes.append(start_script(SCRIPT, arguments, env, str(folder / str(rank))))
    made = Job(folder, port, processes)
    try:
        until(lambda: fetch(f"http://127.0.0.1:{port}/sd"), "the job's first rank")
        yield made
    finally:
        for process in processes:
            process.kill()
            process.join()

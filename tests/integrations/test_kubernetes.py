"""The manifests are what Kubeflow Trainer takes, and what its pods run trains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.ports import free_port
from relaxcomm import config
from tests.integrations.script import SCRIPT, check_trained
from tests.ranks import PATIENCE_SECONDS
from tests.test_readme import ROOT

TrainJob = pytest.importorskip("kubeflow_trainer_api.models").TrainerV1alpha1TrainJob

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(600)]
FOLDER = ROOT / "examples" / "kubernetes"


@pytest.fixture(scope="module")
def manifests():
    """The configuration and the job."""
    return list(yaml.safe_load_all((FOLDER / "trainjob.yaml").read_text()))


def on_pods(command, args, num_pods, workers, folder):
    """Run a container's command on pods that share this host, with the variables of the Torch runtime."""
    port = str(free_port())
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    pods = []
    for pod in range(num_pods):
        environment = {
            **kept,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "OMP_NUM_THREADS": "1",
            "PET_NNODES": str(num_pods),
            "PET_NPROC_PER_NODE": str(workers),
            "PET_NODE_RANK": str(pod),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": port,
        }
        pods.append(
            subprocess.Popen(
                [*command, *args],
                cwd=folder,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    try:
        ended = [pod.communicate(timeout=PATIENCE_SECONDS) for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    assert [pod.returncode for pod in pods] == [0] * num_pods, ended
    return ended


def test_the_job_is_what_kubeflow_publishes(manifests):
    _, job = manifests
    assert TrainJob.from_dict(job).to_dict() == job  # what is not in the schema is left out of it
    reserved = [
        one["name"] for one in job["spec"]["trainer"].get("env", ()) if one["name"].startswith("PET_")
    ]
    assert reserved == []


def test_the_parts_of_the_manifest_fit_together(manifests):
    settings, job = manifests
    loaded = config.load(yaml.safe_load(settings["data"]["relaxcomm.yaml"]))
    (patch,) = job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert (node["name"], container["name"]) == ("node", "node")  # as in the runtime torch-distributed
    assert places.keys() == volumes.keys()
    assert volumes["config"]["configMap"]["name"] == settings["metadata"]["name"]
    assert job["spec"]["trainer"]["args"][-1] == f"{places['config']}/relaxcomm.yaml"
    assert str(loaded.checkpoint.path) == places["saved"]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(loaded.metrics.port)
    assert loaded.metrics.address == "0.0.0.0"


def test_two_pods_train_what_the_manifest_says(manifests, tmp_path):
    settings, job = manifests
    text = settings["data"]["relaxcomm.yaml"].replace("/saved", str(tmp_path / "saved"))
    (tmp_path / "relaxcomm.yaml").write_text(text)
    trainer = job["spec"]["trainer"]
    args = [one.replace("/config/", f"{tmp_path}/") for one in trainer["args"]]
    shorter = ["--set", "task={digits: {epochs: 2, hidden: [16]}}", "--set", "metrics.port=0"]
    shorter += ["--set", "checkpoint.every_steps=5"]
    first, second = on_pods(trainer["command"], [*args, *shorter], 2, 2, tmp_path)
    assert [line.split()[0] for line in first[0].splitlines()] == ["algorithm", "local_sgd"]
    assert second[0] == ""
    assert list((tmp_path / "saved").iterdir())


def test_a_script_attaches_on_two_pods(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = on_pods(["torchrun"], ["script.py"], 2, 2, tmp_path)
    check_trained([line for out, _ in ended for line in out.splitlines()], 4)
    assert "relaxcomm: 4 ranks, bsp, gloo" in ended[0][1]


def test_prometheus_takes_its_configuration(manifests, tmp_path):
    """Debian's is built without what finds pods; the rules for them are read all the same."""
    settings, job = manifests
    text = (FOLDER / "prometheus.yml").read_text()
    by_list, by_pods = yaml.safe_load(text)["scrape_configs"]
    (place,) = by_list["http_sd_configs"]
    name, port = (
        job["metadata"]["name"],
        yaml.safe_load(settings["data"]["relaxcomm.yaml"])["metrics"]["port"],
    )
    assert place["url"] == f"http://{name}-node-0-0.{name}.default.svc:{port}/sd"
    assert by_pods["kubernetes_sd_configs"] == [{"role": "pod"}]
    asked = set(re.findall(r"pod_annotation_(prometheus_io_\w+)\b", text))
    (node,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    written = node["template"]["spec"]["template"]["metadata"]["annotations"]
    assert {re.sub(r"\W", "_", one) for one in written} == asked
    if shutil.which("promtool") is None:
        pytest.skip("the Debian package prometheus, which has promtool, is not installed")
    by_pods["static_configs"] = [{"targets": ["10.0.0.3:9400"]}]
    del by_pods["kubernetes_sd_configs"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [by_list, by_pods]}))
    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr

"""
Reading a run log
=================

With `metrics` and `output` in the configuration each worker writes a file of JSON lines: one for each
synchronisation and evaluation, a first one that says what runs, and a summary. Any tool reads it;
`pandas.read_json(path, lines=True)` does, too.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import relaxcomm

# %%
# A run with a log
# ----------------
# `engine.observe` and `engine.observe_evaluation` put values of your own into it. `relaxcomm train` calls
# both.

folder = Path(tempfile.mkdtemp())
config = {
    "algorithm": {"name": "selsync", "threshold": 0.2, "window_steps": 10},
    "output": str(folder),
    "metrics": {"port": None},  # a log, and nothing for Prometheus
}
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
data = torch.utils.data.TensorDataset(images[:1437], labels[:1437])


def train(group):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
        for _ in range(12):
            for x, y in engine.loader(data, batch_size=32):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                engine.observe(loss=loss)
            with engine.averaged(), torch.no_grad():
                guesses = model(images[1437:]).argmax(dim=1)
            engine.observe_evaluation(accuracy=(guesses == labels[1437:]).float().mean())


relaxcomm.simulate(train, 3)

# %%
# Its lines
# ---------
# The first key says what a line is; another algorithm, and ranks lost or joined, have lines of their own.

(path,) = folder.glob("*.rank0.jsonl")
lines = [json.loads(line) for line in path.read_text().splitlines()]
synchronisations = [line for line in lines if next(iter(line)) == "time"]
evaluations = [line for line in lines if next(iter(line)) == "evaluation"]
summary = lines[-1]["summary"]

print(lines[0]["composition"])
print(f"{summary['synchronisations']} synchronisations in {summary['steps']} steps")
print({key: synchronisations[-1][key] for key in ("step", "bytes_sent", "bytes_uncompressed", "loss")})
print(evaluations[-1]["evaluation"])

# %%
# When it synchronised, and what that saved
# -----------------------------------------
# `bytes_uncompressed` is what synchronising in every step would have sent by then.

steps = [line["step"] for line in synchronisations]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot([line["step"] for line in evaluations], [line["evaluation"]["accuracy"] for line in evaluations])
left.plot(steps, [left.get_ylim()[0]] * len(steps), "|", label="a synchronisation")
left.set(xlabel="step", ylabel="accuracy on held-out images")
left.legend()
right.plot(steps, [line["bytes_uncompressed"] / 1e6 for line in synchronisations], label="every step")
right.plot(steps, [line["bytes_sent"] / 1e6 for line in synchronisations], label="SelSync")
right.set(xlabel="step", ylabel="MB sent by this worker")
right.legend()
plt.show()

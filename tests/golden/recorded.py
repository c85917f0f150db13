"""The file of recorded trajectories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.golden.cases import CASES, LOOPS
from tests.golden.trajectories import Trajectory, trajectory

FILE = Path(__file__).with_name("recorded.npz")
NOISE = np.r_[48:56, 72:80]
"""The bias before BatchNorm, and the running mean that it moves: its gradient is rounding errors, whose signs
depend on the number of threads."""
ASKING = {"diloco", "fedavg adam", "slowmo", "sparseloco", "streaming_diloco"}
"""Outer optimizers with a memory: ranks ask each other what rests where a parameter has not moved, on GPUs
always, else where the bias before BatchNorm, which moves by rounding errors, stands still."""
ALL = [(name, loop) for name in CASES for loop, takes in LOOPS.items() if takes(name)]


def record() -> None:
    """Write what the code does now: in float64 with its values, in float32 as digests."""
    arrays, texts = {}, {}
    for name, loop in ALL:
        ranks, single = trajectory(name, loop), trajectory(name, loop, torch.float32)
        arrays[f"{name}/{loop}"] = np.stack([v for one in ranks for v in (one.before_close, one.after_close)])
        texts[f"{name}/{loop}"] = {
            "counts": [one.counts for one in ranks],
            "float64": [one.steps for one in ranks],
            "float32": [one.steps for one in single],
        }
    np.savez_compressed(FILE, texts=json.dumps(texts), **arrays)


def load() -> Mapping[str, Any]:
    """The recorded texts under "texts", and values by "name/loop", `[2 ranks, entries]`."""
    with np.load(FILE) as file:
        found: dict[str, Any] = dict(file)
    found["texts"] = json.loads(str(found["texts"]))
    return found


def check_counts(recorded: Mapping[str, Any], name: str, now: list[Trajectory]) -> None:
    """Compare what was counted, and under `ASKING` bytes up to a twentieth."""
    expected = recorded["texts"][name]["counts"]
    if name.split("/")[0] in ASKING:
        expected = [one | {"bytes_sent": pytest.approx(one["bytes_sent"], rel=0.05)} for one in expected]
    assert [one.counts for one in now] == expected


def distance(recorded: Any, now: list[Trajectory]) -> float:
    """The largest difference of an entry before or after close, but for `NOISE`, as a part of the largest."""
    values = np.stack([v for one in now for v in (one.before_close, one.after_close)])
    if values.shape != recorded.shape:
        return float("inf")
    apart = np.delete(np.abs(values - recorded), NOISE, axis=1)
    return float(apart.max() / np.abs(recorded).max())


def differences() -> Iterator[str]:
    """Every case that is not bit for bit what this machine has recorded, in words."""
    recorded = load()
    for name, loop in ALL:
        before = recorded["texts"].get(f"{name}/{loop}")
        if before is None:
            yield f"{name}, {loop}: not recorded"
            continue
        now, single = trajectory(name, loop), trajectory(name, loop, torch.float32)
        if [one.counts for one in now] != before["counts"]:
            changed = [
                f"{key} {old[key]} -> {one.counts[key]}"
                for one, old in zip(now, before["counts"], strict=True)
                for key in old
                if old[key] != one.counts[key]
            ]
            yield f"{name}, {loop}: {', '.join(changed)}"
        for kind, ranks in (("float64", now), ("float32", single)):
            steps = [
                next(
                    (i for i, pair in enumerate(zip(one.steps, old, strict=False)) if len(set(pair)) > 1),
                    None,
                )
                for one, old in zip(ranks, before[kind], strict=True)
            ]
            if any(step is not None for step in steps):
                far = f", {distance(recorded[f'{name}/{loop}'], now):.1e} at the end" if ranks is now else ""
                yield f"{name}, {loop}, {kind}: ranks differ from steps {steps}{far}"

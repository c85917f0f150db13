"""Whatever becomes of the files of a checkpoint: its content comes back, or one error names what is wrong."""

from __future__ import annotations

import resource
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

import relaxcomm
from relaxcomm import CheckpointWarning, ConfigError, checkpoint
from relaxcomm.checkpoint.manifest import MANIFEST, File, Manifest
from tests.engine.harness import World, values
from tests.models import CASES, trainable

SIZE = 2
STEPS = (1, 2)
LONGEST_CHARACTERS = 2_000
LONGEST_SECONDS = 20.0
MORE_MEMORY_KILOBYTES = 1_000_000
CASES_IN_ALL, SAMPLE = 2_000, 30


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, dict[str, list[list[float]]]]:
    """Two checkpoints of two ranks, and each rank's parameters in each."""
    folder = tmp_path_factory.mktemp("saved")

    def train(world: World) -> list[list[float]]:
        case, history = CASES["toy"], []
        model, optimizer = trainable("toy", "momentum", seed=world.rank)
        with world.attach(model, optimizer, {"algorithm": "local_sgd"}) as engine:
            for step in STEPS:
                case.local_loss(model, step, world.rank).backward()
                optimizer.step()
                optimizer.zero_grad()
                checkpoint.save(engine, folder)
                history.append(values(model).tolist())
            engine.close(average=False)
        return history

    ranks = relaxcomm.simulate(lambda group: train(World(group.rank(), SIZE, group)), SIZE)
    return folder, {f"step-{step:08d}": [one[step - 1] for one in ranks] for step in STEPS}


def load_all(path: Path) -> list[tuple[Any, list[float]]]:
    """What each rank loads, or its error, and its parameters then."""

    def load(world: World) -> tuple[Any, list[float]]:
        model, optimizer = trainable("toy", "momentum", seed=5)
        with world.attach(model, optimizer, {"algorithm": "local_sgd", "timeout_seconds": 20}) as engine:
            try:
                found = checkpoint.load(engine, path)
            except ConfigError as error:
                found = str(error)
            engine.close(average=False)
        return found, values(model).tolist()

    return relaxcomm.simulate(lambda group: load(World(group.rank(), SIZE, group)), SIZE)


def damage(draw: Callable[..., Any], path: Path, others: list[Path]) -> None:
    """Change one file as a disk, or a careless hand, would."""
    if not path.is_file() or path.is_symlink():
        return  # it was damaged before
    data = path.read_bytes()
    how = draw(
        st.sampled_from(["flip", "cut", "zeros", "remove", "append", "swap", "empty", "folder", "link"])
    )
    place = draw(st.integers(0, max(0, len(data) - 1)))
    if how == "flip":
        bit = 1 << draw(st.integers(0, 7))
        path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :] if data else b"x")
    elif how == "cut":
        path.write_bytes(data[:place])
    elif how == "zeros":
        span = min(len(data) - place, draw(st.integers(1, 4096)))
        path.write_bytes(data[:place] + bytes(span) + data[place + span :])
    elif how == "append":
        path.write_bytes(data + draw(st.binary(min_size=1, max_size=64)))
    elif how == "swap":
        files = [other for other in others if other.is_file()]  # others may have been damaged before
        path.write_bytes(draw(st.sampled_from(files)).read_bytes())
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "link":
            path.symlink_to("/dev/zero")


def forge(draw: Callable[..., Any], folder: Path) -> None:
    """Change a file, or what the manifest says, so that all checksums are right again."""
    try:
        manifest = Manifest.read(folder)
    except ConfigError:
        return  # it was damaged before
    path = folder / draw(st.sampled_from(sorted(manifest.files)))
    damage(draw, path, sorted(folder.glob("*")))
    files = dict(manifest.files)
    if path.is_file() and not path.is_symlink():
        files[path.name] = File.of(path)
    numbers = st.sampled_from([0, 1, 2, 3, 1_000_000, 10**18])
    changed = {"files": files}
    if draw(st.booleans()):
        changed[draw(st.sampled_from(["world_size", "number", "step"]))] = draw(numbers)
    manifest.model_copy(update=changed).write(folder)


def hold(folder: Path, whole: dict[str, list[list[float]]], *, forged: bool) -> None:
    """What is loaded is what was saved, on all ranks; or all refuse, soon and in few words."""
    memory, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ranks = load_all(folder)
    assert time.monotonic() - began < LONGEST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MORE_MEMORY_KILOBYTES
    (result,) = {str(found) for found, _ in ranks}
    parameters = [one for _, one in ranks]
    warned = [str(one.message) for one in told if issubclass(one.category, CheckpointWarning)]
    if isinstance(ranks[0][0], Path):
        assert forged or parameters == whole[Path(result).name]
        assert forged or len(warned) == (Path(result).name != "step-00000002")
        assert all(str(folder) in one for one in warned)
    else:
        assert parameters == [values(CASES["toy"].model(seed=5)).tolist()] * SIZE
        assert len(result) <= LONGEST_CHARACTERS
        assert forged or all(name in result for name in whole)  # what is wrong with each


def try_one(data: st.DataObject, saved: Path, whole: dict[str, list[list[float]]], place: Path) -> None:
    folder = place / "tried"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    forged = data.draw(st.integers(0, 3)) == 0
    for _ in range(data.draw(st.integers(1, 3))):
        one = folder / data.draw(st.sampled_from(sorted(whole, reverse=True)))
        if forged and (one / MANIFEST).is_file():
            forge(data.draw, one)
        elif files := sorted(one.iterdir()):
            damage(data.draw, data.draw(st.sampled_from(files)), sorted(saved.glob("*/*")))
    hold(folder, whole, forged=forged)


def _hold(cases: int, saved: tuple[Path, dict[str, list[list[float]]]], place: Path, **options: bool) -> None:
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        **options,
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        try_one(data, *saved, place)

    holds()


def test_a_fixed_sample_of_damaged_checkpoints(saved, tmp_path):
    _hold(SAMPLE, saved, tmp_path, derandomize=True)


@pytest.mark.faults
@pytest.mark.timeout(2_400)
def test_damaged_checkpoints(saved, tmp_path):
    _hold(CASES_IN_ALL, saved, tmp_path)

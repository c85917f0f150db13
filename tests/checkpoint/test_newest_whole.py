"""Where the newest checkpoint is damaged, all ranks go on from the newest one that is whole."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from relaxcomm import CheckpointWarning, ConfigError, checkpoint
from relaxcomm.checkpoint.manifest import MANIFEST, checkpoints
from relaxcomm.checkpoint.storage import METADATA
from tests.engine.harness import World, in_process, values
from tests.models import CASES, take_step, trainable


def saved(world: World, folder: Path, steps: int, keep: int = 9):
    """Train, save after each step, and tell the parameters after each."""
    case, history = CASES["toy"], []
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    with world.attach(model, optimizer, {"algorithm": "local_sgd"}) as engine:
        for step in range(steps):
            take_step(case.local_loss(model, step, world.rank), optimizer)
            checkpoint.save(engine, folder, keep=keep)
            history.append(values(model))
        engine.close(average=False)
    return history


def loaded(world: World, path: Path):
    """The folder that was loaded, or the error, and the parameters."""
    model, optimizer = trainable("toy", "momentum")
    with world.attach(model, optimizer, {"algorithm": "local_sgd"}) as engine:
        try:
            found = checkpoint.load(engine, path)
        except ConfigError as error:
            found = error
        engine.close(average=False)
    return found, values(model)


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "remove":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("which", ["__0_0.distcp", "__1_0.distcp", METADATA, MANIFEST])
def test_all_go_on_from_the_one_before(tmp_path, which, how):
    history = in_process(saved, 2, tmp_path, 3)
    path = tmp_path / "step-00000003" / which
    damage(path, how)
    with pytest.warns(CheckpointWarning) as told:
        found = in_process(loaded, 2, tmp_path)
    (warning,) = told
    assert str(path) in str(warning.message)
    assert str(warning.message).endswith(f": the run goes on from {tmp_path / 'step-00000002'}")
    for (folder, parameters), saved_ones in zip(found, history, strict=True):
        assert folder == tmp_path / "step-00000002"
        np.testing.assert_array_equal(parameters, saved_ones[1])


def test_another_number_of_ranks_falls_back_too(tmp_path, capsys):
    in_process(saved, 3, tmp_path, 2)
    damage(tmp_path / "step-00000002" / "__2_0.distcp", "remove")
    with pytest.warns(CheckpointWarning, match="__2_0.distcp: No such file"):
        found = in_process(loaded, 2, tmp_path)
    assert {folder for folder, _ in found} == {tmp_path / "step-00000001"}
    said = f"{tmp_path / 'step-00000001'} was saved by 3 workers; 2 go on, from the mean of their models\n"
    assert capsys.readouterr().err.count(said) == 1


def test_where_none_is_whole_each_is_told_of(tmp_path):
    in_process(saved, 2, tmp_path, 2)
    for step, which in ((1, METADATA), (2, "__1_0.distcp")):
        damage(tmp_path / f"step-0000000{step}" / which, "flip")
    (one, _), (other, _) = in_process(loaded, 2, tmp_path)
    assert str(one) == str(other)
    first, newer, older = str(one).splitlines()
    assert first.startswith(f"none of the checkpoints in {tmp_path} is whole; bring back what is missing, or")
    assert newer.startswith("step-00000002: ")
    assert "__1_0.distcp is damaged: its checksum is another" in newer
    assert older.startswith("step-00000001: ")
    assert METADATA in older


@pytest.mark.parametrize("which", ["__1_0.distcp", MANIFEST])
def test_one_that_is_named_is_the_only_one(tmp_path, which):
    in_process(saved, 2, tmp_path, 2)
    named = tmp_path / "step-00000002"
    damage(named / which, "remove")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for error, parameters in in_process(loaded, 2, named):
            assert (
                str(error)
                == f"cannot read {named / which}: No such file or directory; load another checkpoint"
            )
            np.testing.assert_array_equal(parameters, values(CASES["toy"].model()))


def test_what_nobody_can_read_counts_for_nothing_when_old_ones_go(tmp_path):
    in_process(saved, 2, tmp_path, 2)
    for step in (1, 2):
        damage(tmp_path / f"step-0000000{step}" / MANIFEST, "flip")
    in_process(saved, 2, tmp_path, 1, 1)
    assert [one.name for one in tmp_path.iterdir()] == ["step-00000001-2"]
    assert all(found == tmp_path / "step-00000001-2" for found, _ in in_process(loaded, 2, tmp_path))


def test_a_file_is_no_folder_without_any(tmp_path):
    path = tmp_path / "file"
    path.touch()
    assert all("cannot read" in str(error) for error, _ in in_process(loaded, 2, path))


@pytest.mark.parametrize("inside", ["", "mine"])
def test_a_link_to_what_is_not_there_is_not_taken_for_none(tmp_path, inside):
    """A run whose disk is not mounted would begin anew."""
    link, gone = tmp_path / "checkpoints", tmp_path / "unmounted"
    link.symlink_to(gone)
    path = link / inside
    told = f"rank 0: cannot read {path}: {link} is a link, and {gone} is not there"
    assert {str(error) for error, _ in in_process(loaded, 2, path)} == {told}


def test_a_checkpoint_that_lies_elsewhere_is_found_by_its_link_and_not_deleted(tmp_path):
    folder, disk = tmp_path / "run", tmp_path / "disk"
    in_process(saved, 2, folder, 2)
    newest = folder / "step-00000002"
    newest.rename(disk)
    newest.symlink_to(disk)
    assert {found for found, _ in in_process(loaded, 2, folder)} == {newest}
    in_process(saved, 2, folder, 3, 1)
    assert {one.name for one in folder.iterdir()} == {"step-00000002", "step-00000003"}
    assert {found for found, _ in in_process(loaded, 2, folder)} == {folder / "step-00000003"}
    disk.rename(tmp_path / "elsewhere")
    shutil.rmtree(folder / "step-00000003")
    in_process(saved, 2, folder, 1)
    with pytest.warns(CheckpointWarning, match="step-00000002/manifest.json: No such file"):
        in_process(loaded, 2, folder)


def test_other_folders_are_no_checkpoints(tmp_path):
    in_process(saved, 1, tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "mine")
    (tmp_path / "mine" / MANIFEST).unlink()  # what torch's own save writes
    (tmp_path / "step-00000009").mkdir()
    assert [one.folder.name for one in checkpoints(tmp_path)] == ["step-00000001"]


def test_samples_are_counted_as_in_a_run_that_was_not_stopped(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(24, 2))

    def train(world: World, begin: int, end: int):
        """Samples before and after each step; saved after step 3."""
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
            loader = engine.loader(data, batch_size=2)
            if begin:
                checkpoint.load(engine, tmp_path)
                seen.append(engine.statistics["samples"])
            while engine.statistics["steps"] < end:
                for (x,) in loader:
                    take_step(model(x).sum(), optimizer)
                    seen.append(engine.statistics["samples"])
                    if engine.statistics["steps"] == 3 and not begin:
                        checkpoint.save(engine, tmp_path)
        return seen

    whole, resumed = in_process(train, 2, 0, 12)[1], in_process(train, 2, 3, 12)[1]
    assert resumed == whole[2:] == [2.0 * step for step in range(3, 13)]

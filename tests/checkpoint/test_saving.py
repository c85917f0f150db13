"""Checkpoints on the disk: all or nothing, verified, and gone on from bit for bit."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import relaxcomm
from relaxcomm import CommunicationError, ConfigError, NonFiniteError, RelaxcommError, UsageError, checkpoint
from relaxcomm.checkpoint import writing
from relaxcomm.checkpoint.manifest import MANIFEST, checkpoints
from relaxcomm.checkpoint.plain_state import join, split
from relaxcomm.checkpoint.storage import METADATA, unpickle
from relaxcomm.checks.trial_problem import Trial
from relaxcomm.config import registry
from relaxcomm.plugin import Membership
from tests.engine.harness import World, in_process, values
from tests.models import CASES, make_optimizer, take_step, trainable

NEEDED = {
    "adaptive_local_sgd": {"max_batch_size": 64},
    "post_local_sgd": {"steps": 2, "after_steps": 5},
}


@pytest.mark.parametrize("name", ["auto", "fedavg", "ssp"])
def test_algorithms_without_a_common_step_go_on_bit_for_bit(name, tmp_path):
    """Stopped in an epoch, saved with a schedule, loaded into what is made anew; the others: tests/golden."""
    trial = Trial(registry.algorithms()[name](**NEEDED.get(name, {})))

    def train(rank, seen):
        for batch in rank.loader:
            rank.group.sleep(1.0)
            for (x, y), share in rank.engine.micro_batches(batch, 4):
                (share * (rank.model(x) - y).square().mean()).backward()
            rank.optimizer.step()
            rank.optimizer.zero_grad()
            rank.schedule.step()
            seen.append(torch.cat([p.detach().flatten() for p in rank.model.parameters()]))
            yield

    def whole(rank):
        seen = []
        for epoch in range(3):
            for step, _ in enumerate(train(rank, seen)):
                if (epoch, step) == (1, 1):
                    checkpoint.save(rank.engine, tmp_path, schedule=rank.schedule)
                    rank.group.sleep(1000.0 - rank.group.time())
                    seen.clear()
        return torch.stack(seen), rank.engine.statistics["steps"]

    def resumed(rank):
        rank.group.sleep(1000.0)
        assert checkpoint.load(rank.engine, tmp_path, schedule=rank.schedule) is not None
        seen = []
        for _ in range(rank.loader.epoch, 3):
            for _ in train(rank, seen):
                pass
        return torch.stack(seen), rank.engine.statistics["steps"]

    for (expected, steps), (found, steps_again) in zip(trial.run(whole), trial.run(resumed), strict=True):
        assert torch.equal(found, expected)
        assert steps_again == steps


def some_run(world: World, folder: Path, steps: int, algorithm="local_sgd", case="convnet"):
    """Train and save after each step; the engine's ranks end with their parameters."""
    model, optimizer = trainable(case, "momentum", seed=world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for step in range(steps):
            take_step(CASES[case].local_loss(model, step, world.rank), optimizer)
            checkpoint.save(engine, folder)


def load_into(world: World, folder: Path, algorithm="local_sgd", case="convnet"):
    """The message of the error that loading ends with; or None. Nothing has changed if there is one."""
    model, optimizer = trainable(case, "momentum")
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        before = values(model)
        try:
            checkpoint.load(engine, folder)
        except ConfigError as error:
            np.testing.assert_array_equal(values(model), before)
            assert not optimizer.state
            assert engine.statistics["steps"] == 0
            return str(error)
        return None


def test_what_is_equal_is_written_once(tmp_path):
    sizes = {}
    for algorithm in ("bsp", "local_sgd"):
        in_process(some_run, 3, tmp_path / algorithm, 1, algorithm, "mlp")
        found = [path for path in (tmp_path / algorithm).glob("*/*") if path.suffix == ".distcp"]
        assert len(found) == 3  # every rank writes some of it
        names = unpickle(next((tmp_path / algorithm).glob(f"*/{METADATA}")).read_bytes()).state_dict_metadata
        sizes[algorithm] = len([name for name in names if name.endswith("model.0.weight")])
    assert sizes == {"bsp": 1, "local_sgd": 3}


def test_the_tools_of_torch_read_it(tmp_path):
    in_process(some_run, 2, tmp_path, 1, "bsp", "mlp")
    with torch.serialization.safe_globals([]):
        dcp_to_torch_save(next(tmp_path.iterdir()), tmp_path / "whole.pt")
    assert torch.load(tmp_path / "whole.pt")["model.0.weight"].shape == (24, 8)


def spoilt_run(world: World, folder: Path, bad: tuple[int, ...]):
    """Save before and after NaN comes to some ranks: what the second raises, and the first is loaded."""
    model = CASES["mlp"].model()
    mask = torch.nn.Parameter(torch.full((2,), -torch.inf), requires_grad=False)
    model.register_parameter("mask", mask)
    with world.attach(model, make_optimizer("momentum", model), "bsp") as engine:
        checkpoint.save(engine, folder, keep=1)
        good = values(model)
        if world.rank in bad:
            model[0].bias.data[1] = torch.nan
        with pytest.raises(NonFiniteError) as caught:
            checkpoint.save(engine, folder, keep=1)
        checkpoint.load(engine, folder)
        np.testing.assert_array_equal(values(model), good)
    return str(caught.value), caught.value.on_all_ranks


@pytest.mark.parametrize("bad", [(1,), (0, 1, 2)])
def test_a_model_that_is_not_finite_is_no_checkpoint(bad, tmp_path):
    """`bsp` does not look at what it averages, and what is saved would take the place of a good one."""
    results = in_process(spoilt_run, 3, tmp_path, bad)
    assert len(set(results)) == 1
    where = "; ".join(f"parameter 0.bias on rank {rank}" for rank in bad)
    assert results[0][0].startswith(f"step 0: NaN or infinity in {where}; no checkpoint was saved, and the")
    assert results[0][1]
    assert len(list(tmp_path.iterdir())) == 1


def test_the_newest_stay(tmp_path):
    in_process(some_run, 2, tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def test_a_step_that_was_saved_before_is_saved_beside_it(tmp_path):
    in_process(some_run, 2, tmp_path, 1)
    in_process(some_run, 2, tmp_path, 1)
    assert [one.folder.name for one in checkpoints(tmp_path)] == ["step-00000001", "step-00000001-2"]


def test_it_is_given_up_also_by_a_rank_that_begins_to_write_when_another_has_given_up(tmp_path):
    """Its folder is there once more, with what the late rank alone has written."""
    place = writing.prepare(tmp_path, step=5, keep=2)

    def begin(rank: int) -> writing.Write:
        begun = writing.Write(place, {}, {"x": torch.ones(3)}, Membership(rank, 3), timeout_seconds=60)
        while not list(place.partial.glob(f"*/content-{rank}.told")):
            time.sleep(0.01)
        return begun

    assert not begin(0).give_up()
    assert not begin(2).give_up()
    assert len(list(tmp_path.iterdir())) == 2
    later = writing.prepare(tmp_path, step=6, keep=2)
    assert len(list(tmp_path.iterdir())) == 2, "who prepares it may be a rank that the others have given up"
    writing.clear_away(later)
    assert not list(tmp_path.iterdir()), "the next one clears them away"


def test_without_a_checkpoint_a_run_begins_anew(tmp_path):
    def program(world):
        with world.attach(torch.nn.Linear(1, 1), None, "bsp") as engine:
            return checkpoint.load(engine, tmp_path / "none")

    assert in_process(program, 2) == [None, None]


class Other:
    """What has a state beside the run's own, which it may fail to give."""

    def __init__(self) -> None:
        self.fails = False

    def state_dict(self):
        if self.fails:
            raise OSError("it is elsewhere")
        return {}

    def load_state_dict(self, state):
        """It has none to go on from."""


@pytest.mark.parametrize("algorithm", ["bsp", "ssp"])
def test_where_one_rank_cannot_give_its_state_all_know_and_go_on(algorithm, tmp_path):
    def program(world):
        model, other = CASES["mlp"].model(), Other()
        optimizer = make_optimizer("momentum", model)
        with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
            CASES["mlp"].local_loss(model, 0, world.rank).backward()
            optimizer.step()
            other.fails = world.rank == 1
            with pytest.raises(OSError if other.fails else CommunicationError, match="it is elsewhere"):
                checkpoint.save(engine, tmp_path, other=other)
            other.fails = False
            return checkpoint.save(engine, tmp_path, other=other).name

    assert in_process(program, 3) == ["step-00000001"] * 3


@pytest.mark.parametrize("algorithm", ["bsp", "ssp", "async_model_average", "decoupled_diloco"])
def test_what_is_wrong_on_one_rank_alone_is_told_on_all_who_can_go_on(algorithm, tmp_path):
    """Also where ranks meet as they save."""

    def program(world):
        model = CASES["mlp"].model()
        optimizer, saved = make_optimizer("momentum", model), []
        with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 600}) as engine:
            for step in range(2):
                take_step(CASES["mlp"].local_loss(model, step, world.rank), optimizer)
                with pytest.raises(ConfigError, match="rank 1: keep is 0; keep at least 1"):
                    checkpoint.save(engine, tmp_path, keep=0 if world.rank == 1 else 2)
                for act in (checkpoint.save, checkpoint.load):
                    with pytest.raises(ConfigError, match="rank 1: 'best' is of type int"):
                        act(engine, tmp_path, best=3 if world.rank == 1 else Other())
                before = {name: value.clone() for name, value in model.state_dict().items()}
                if algorithm == "ssp":  # which would take it for what this rank has trained
                    if world.rank == 1:
                        model.load_state_dict({name: value + 1 for name, value in before.items()})
                    with pytest.raises(UsageError, match="load_state_dict"):
                        checkpoint.save(engine, tmp_path)
                    model.load_state_dict(before)
                saved.append(checkpoint.save(engine, tmp_path).name)
        return saved

    assert in_process(program, 3) == [["step-00000001", "step-00000002"]] * 3


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_rank_cannot_write_none_has_saved(tmp_path, monkeypatch, failing):
    in_process(some_run, 2, tmp_path, 1)
    write = writing.Writing.write

    def full(self, plans):
        if self._rank == failing:
            raise OSError(28, "No space left on device")
        return write(self, plans)

    monkeypatch.setattr(writing.Writing, "write", full)
    with pytest.raises(RelaxcommError, match=rf"rank {failing}: .*No space left.*older ones are untouched"):
        in_process(some_run, 2, tmp_path, 1)
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == ["step-00000001"], "the disk stays full"
    (tmp_path / "step-00000001.0123abcd.partial").mkdir()  # of a run that was killed
    in_process(some_run, 2, tmp_path, 1)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("which", ["__0_0.distcp", "__1_0.distcp", METADATA, MANIFEST])
def test_a_damaged_file_is_named(tmp_path, which, damage):
    in_process(some_run, 2, tmp_path, 1)
    path = tmp_path / "step-00000001" / which
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(data[:-1])
    else:
        path.write_bytes(
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        )
    one, other = in_process(load_into, 2, tmp_path)
    assert one == other
    assert str(path) in one


def test_another_model_algorithm_or_world_is_refused(tmp_path):
    in_process(some_run, 2, tmp_path, 1, "local_sgd", "mlp")
    for wrong, text in (
        ({"case": "toy"}, r"of another model: 0.weight was \[24, 8\] float32, and is \[11, 6\] float64 here"),
        ({"algorithm": "bsp"}, r"has algorithm .*local_sgd.*, this run has .*bsp"),
    ):
        for found in in_process(lambda world, w=wrong: load_into(world, tmp_path, **{"case": "mlp", **w}), 2):
            assert re.search(text, found), found


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_no_code_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir has no place in a checkpoint"):
        unpickle(pickle.dumps(Evil()))
    assert not Path("ran").exists()


def test_a_forged_table_of_contents_is_refused(tmp_path):
    """All checksums are right, but it was not written by us."""
    in_process(some_run, 2, tmp_path, 1)
    folder = tmp_path / "step-00000001"
    (folder / METADATA).write_bytes(pickle.dumps(Evil()))
    manifest = checkpoints(tmp_path)[0].manifest
    files = {**manifest.files, METADATA: type(next(iter(manifest.files.values()))).of(folder / METADATA)}
    manifest.model_copy(update={"files": files}).write(folder)
    for found in in_process(load_into, 2, tmp_path):
        assert "is no checkpoint of relaxcomm" in found


def test_a_state_comes_back_as_it_was():
    state = {
        "numbers": (1, 2.5, float("inf"), None, True, "text"),
        "tensors": [torch.ones(2, dtype=torch.bfloat16), torch.zeros(0), torch.tensor(3)],
        "keys": {1: torch.ones(1), "1": torch.zeros(1)},
        "kind": torch.float16,
    }
    plain, tensors = split("state", state, copy=True)
    found = join(json.loads(json.dumps(plain)), tensors)
    assert repr(found) == repr(state)
    with pytest.raises(ConfigError, match=r"state\.0 is a PosixPath, which a checkpoint cannot hold"):
        split("state", [Path()], copy=True)


def test_random_numbers_go_on(tmp_path):
    with relaxcomm.attach(torch.nn.Linear(1, 1), None, "bsp") as engine:
        checkpoint.save(engine, tmp_path)
        drawn = random.random(), np.random.random(), torch.rand(())
        checkpoint.load(engine, tmp_path)
        assert (random.random(), np.random.random(), torch.rand(())) == drawn


def test_in_the_middle_of_a_step_nothing_is_saved(tmp_path):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, "bsp") as engine:
        model(torch.ones(1, 1)).sum().backward()
        with pytest.raises(relaxcomm.UsageError, match=r"saved in the middle of step 0; save after"):
            checkpoint.save(engine, tmp_path)
        optimizer.step()


def test_the_manifest_is_text(tmp_path):
    in_process(some_run, 2, tmp_path, 1)
    whole = json.loads((tmp_path / "step-00000001" / MANIFEST).read_text())
    assert json.loads(whole["manifest"])["step"] == 1


def test_nobody_else_may_read_a_checkpoint(tmp_path):
    """It holds the parameters; the folder that holds it has the permissions of the umask."""

    def train(group):
        model = torch.nn.Linear(2, 2)
        with relaxcomm.attach(model, None, "bsp", process_group=group) as engine:
            model(torch.ones(1, 2)).sum().backward()
            checkpoint.save(engine, tmp_path / "runs")

    before = os.umask(0o022)
    try:
        relaxcomm.simulate(train, 2)
    finally:
        os.umask(before)
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o755
    (saved,) = [one for one in (tmp_path / "runs").iterdir() if one.is_dir()]
    assert saved.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("called", ["save", "load"])
def test_what_is_no_engine_is_refused(tmp_path, called):
    with pytest.raises(UsageError, match=rf"Linear is no engine.*checkpoint\.{called}\(engine, path\)"):
        getattr(checkpoint, called)(torch.nn.Linear(2, 1), tmp_path)


@pytest.mark.parametrize("value", [3, {"accuracy": 0.5}], ids=["number", "mapping"])
def test_what_has_no_state_is_refused_by_name_also_where_nothing_is_saved_yet(tmp_path, value):
    model = torch.nn.Linear(2, 1)
    with relaxcomm.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "local_sgd") as engine:
        for act in (checkpoint.load, checkpoint.save):
            with pytest.raises(ConfigError, match=r"'best' is of type (int|dict), without state"):
                act(engine, tmp_path / "run", best=value)
    assert not (tmp_path / "run").exists()


class Wrapping:
    """Has what another object has."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_state_may_be_that_of_what_an_object_wraps(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = Wrapping(torch.optim.lr_scheduler.StepLR(optimizer, 1))
    with relaxcomm.attach(model, optimizer, "bsp") as engine:
        checkpoint.save(engine, tmp_path, scheduler=scheduler)
        assert checkpoint.load(engine, tmp_path, scheduler=scheduler)

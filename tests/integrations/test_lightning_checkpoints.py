"""Lightning's checkpoints over relaxcomm: each rank goes on with its own state, bit for bit."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("lightning")

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging

from tests.integrations.lightning_runs import SIZE, Net, ddp, fit, flat, on_ranks
from tests.integrations.test_lightning import Shared
from tests.ranks import RankError

pytestmark = [pytest.mark.ranks, pytest.mark.integrations]
ALGORITHMS = {
    "bsp": {"name": "bsp"},
    "local_sgd": {"name": "local_sgd", "steps": 5},  # an epoch has 6
    "topk_sgd": {"name": "topk_sgd", "density": 0.1},
    "powersgd": {"name": "powersgd"},
    "ssp": {"name": "ssp", "staleness": 0},
    "choco_sgd": {"name": "choco_sgd"},
    "streaming_diloco": {"name": "streaming_diloco", "steps": 4, "delay": 2},
    "delayed_sgd": {"name": "delayed_sgd"},
}


def run(rank, algorithm, folder, epochs, ckpt_path=None, **options):
    """Train with a checkpoint after each epoch, of which all stay."""
    net = Net(norm=True)
    callbacks = [ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_last="link")]
    options = {"enable_checkpointing": True, "callbacks": callbacks, "max_epochs": epochs, **options}
    trainer = fit(net, algorithm, ckpt_path=ckpt_path, **options)
    engine = getattr(trainer.strategy, "engine", None)
    return net.history, flat(net), None if engine is None else engine.statistics["steps"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_goes_on_bit_for_bit(name, tmp_path):
    algorithm = ALGORITHMS[name]
    whole = on_ranks(run, algorithm, f"{tmp_path}/whole", 3)
    on_ranks(run, algorithm, f"{tmp_path}/parts", 2)
    rest = on_ranks(run, algorithm, f"{tmp_path}/parts", 3, f"{tmp_path}/parts/last.ckpt")
    for (history, end, steps), (after, end_after, steps_after) in zip(whole, rest, strict=True):
        close = 1e-4 if name == "ssp" else 0.0  # a server adds what comes in the order in which it comes
        torch.testing.assert_close(torch.stack(history[12:]), torch.stack(after), rtol=close, atol=close)
        torch.testing.assert_close(end, end_after, rtol=close, atol=close)
        assert steps == steps_after == 18


def in_an_epoch(rank, algorithm, folder, ckpt_path=None):
    net = Shared()
    kept = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=4)
    options = {"enable_checkpointing": True, "callbacks": [kept], "use_distributed_sampler": False}
    fit(net, algorithm, ckpt_path=ckpt_path, **options)
    return net.history, net.read


@pytest.mark.parametrize("name", ["local_sgd", "topk_sgd"])
def test_a_run_goes_on_in_the_middle_of_an_epoch_with_the_engines_loader(name, tmp_path):
    """Of a plain DataLoader Lightning would begin the epoch's data anew."""
    whole = on_ranks(in_an_epoch, ALGORITHMS[name], str(tmp_path))
    rest = on_ranks(in_an_epoch, ALGORITHMS[name], f"{tmp_path}/rest", str(tmp_path / "step=4.ckpt"))
    for (history, read), (after, read_after) in zip(whole, rest, strict=True):
        assert read[16:] == read_after
        assert torch.equal(torch.stack(history[4:]), torch.stack(after))


def accumulating(rank, folder):
    fit(
        Net(),
        {"name": "bsp"},
        accumulate_grad_batches=3,
        val_check_interval=2,
        callbacks=[Saving(folder, False)],
    )


def test_saving_in_the_middle_of_an_accumulated_step_is_refused(tmp_path):
    with pytest.raises(RankError) as error:
        on_ranks(accumulating, str(tmp_path))
    assert len(error.value.errors) == SIZE
    assert all("save" in text for _, text in error.value.errors.values()), error.value.errors


def test_the_file_is_lightnings_and_holds_the_mean_model(tmp_path):
    results = on_ranks(run, {"name": "local_sgd", "steps": 100}, str(tmp_path), 1)
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)
    net = Net(norm=True)
    net.load_state_dict(saved["state_dict"])
    torch.testing.assert_close(flat(net), torch.stack([history[-1] for history, _, _ in results]).mean(0))
    assert not torch.equal(results[0][0][-1], results[1][0][-1])
    assert torch.equal(flat(Net.load_from_checkpoint(tmp_path / "epoch=0.ckpt", norm=True)), flat(net))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epoch=0.ckpt",
        "epoch=0.ckpt.ranks",
        "last.ckpt",
    ]
    assert (tmp_path / "epoch=0.ckpt.ranks" / saved["relaxcomm"]).is_dir()


def plain(rank, strategy, folder, epochs, ckpt_path=None):
    net = Net(dropout=0.0)
    kept = ModelCheckpoint(folder, "last")
    options = {
        "enable_checkpointing": True,
        "callbacks": [kept],
        "limit_val_batches": 0,
        "max_epochs": epochs,
    }
    fit(net, strategy, ckpt_path=ckpt_path, **options)
    return flat(net)


@pytest.mark.parametrize("after", ["bsp", "ddp"])
def test_from_ddp_and_back(after, tmp_path):
    both = {"bsp": {"name": "bsp"}, "ddp": ddp}
    whole = on_ranks(plain, ddp, f"{tmp_path}/whole", 2)
    on_ranks(plain, both["bsp" if after == "ddp" else "ddp"], f"{tmp_path}/parts", 1)
    rest = on_ranks(plain, both[after], f"{tmp_path}/parts", 2, f"{tmp_path}/parts/last.ckpt")
    for end, end_after in zip(whole, rest, strict=True):
        torch.testing.assert_close(end, end_after, rtol=1e-5, atol=1e-5)


def test_fewer_ranks_go_on_from_the_mean(tmp_path):
    algorithm = {"name": "local_sgd", "steps": 5}
    on_ranks(run, algorithm, str(tmp_path), 1)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    results = on_ranks(run, algorithm, str(tmp_path), 2, str(tmp_path / "last.ckpt"), size=2)
    assert [steps for _, _, steps in results] == [15, 15]  # 6 of three ranks, 9 of two
    assert torch.equal(results[0][1], results[1][1])
    assert saved["global_step"] == 6


def best(rank, folder):
    """Two of four epochs' checkpoints stay; the best is read and tested."""
    net = Net()
    kept = ModelCheckpoint(folder, "{epoch}", monitor="validation", save_top_k=2)
    trainer = fit(
        net, {"name": "local_sgd", "steps": 4}, enable_checkpointing=True, callbacks=[kept], max_epochs=4
    )
    found = trainer.validate(net, ckpt_path="best", verbose=False)[0]["validation"]
    trainer.save_checkpoint(f"{folder}/end.ckpt")
    return found, float(kept.best_model_score)


def test_the_best_checkpoint_is_the_model_that_was_validated(tmp_path):
    for found, score in on_ranks(best, str(tmp_path)):
        assert found == pytest.approx(score)
    names = [path.name for path in tmp_path.iterdir()]
    assert len([name for name in names if name.startswith("epoch")]) == 4  # two files with a folder each
    assert {f"{name}.ranks" for name in names if name.startswith("epoch") and name.endswith("ckpt")} < {
        *names
    }
    assert "end.ckpt" in names
    assert "end.ckpt.ranks" not in names  # the run had ended


def middle(rank, folder, weights_only):
    """Saved by hand in the middle of a validation, after which the replica goes on as it was."""
    net, plain = Net(), Net()
    algorithm = {"name": "local_sgd", "steps": 100}
    fit(net, algorithm, callbacks=[Saving(folder, weights_only)])
    fit(plain, algorithm)
    return net.history, plain.history, net.validated


class Saving(pl.Callback):
    def __init__(self, folder, weights_only):
        self.folder, self.weights_only = folder, weights_only

    def on_validation_batch_end(self, trainer, *args):
        trainer.save_checkpoint(f"{self.folder}/saved.ckpt", weights_only=self.weights_only)


@pytest.mark.parametrize("weights_only", [False, True])
def test_saving_in_the_middle_of_a_validation(weights_only, tmp_path):
    results = on_ranks(middle, str(tmp_path), weights_only)
    for history, plain, validated in results:
        assert torch.equal(torch.stack(history), torch.stack(plain))
        assert torch.equal(torch.stack(validated), torch.stack(results[0][2]))
    assert (tmp_path / "saved.ckpt.ranks").exists() != weights_only


def test_a_file_without_its_folder_is_refused_on_every_rank(tmp_path):
    on_ranks(run, {"name": "topk_sgd"}, str(tmp_path), 1)
    shutil.rmtree(tmp_path / "epoch=0.ckpt.ranks")
    with pytest.raises(RankError) as error:
        on_ranks(run, {"name": "topk_sgd"}, str(tmp_path), 2, str(tmp_path / "last.ckpt"))
    assert len(error.value.errors) == SIZE
    assert all("keep the folder beside the file" in text for _, text in error.value.errors.values())


def test_another_algorithm_is_refused_on_every_rank(tmp_path):
    on_ranks(run, {"name": "topk_sgd"}, str(tmp_path), 1)
    with pytest.raises(RankError) as error:
        on_ranks(run, {"name": "bsp"}, str(tmp_path), 2, str(tmp_path / "last.ckpt"))
    assert len(error.value.errors) == SIZE


def far(rank):
    net = Net()
    fit(net, {"name": "bsp"}, callbacks=[Saving("memory://bucket", False)])


def test_a_place_that_is_no_folder_is_refused():
    with pytest.raises(RankError) as error:
        on_ranks(far)
    assert all("in no folder of a file system" in text for _, text in error.value.errors.values())


def interrupted(rank, folder):
    """All ranks fail alike, after which rank 0's state is saved."""
    kept = ModelCheckpoint(folder, "failed", save_on_exception=True)
    with pytest.raises(ZeroDivisionError):
        fit(Failing(), {"name": "local_sgd"}, enable_checkpointing=True, callbacks=[kept])
    return Path(folder, "failed.ckpt").exists(), Path(folder, "failed.ckpt.ranks").exists()


class Failing(Net):
    def on_train_batch_start(self, batch, index):
        if index == 3:
            raise ZeroDivisionError


def test_a_run_that_fails_is_saved_without_the_other_ranks(tmp_path):
    assert on_ranks(interrupted, str(tmp_path)) == [(True, False)] * SIZE


class SavingLast(pl.Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_validation_epoch_end(self, trainer, *args):
        trainer.save_checkpoint(f"{self.folder}/saved.ckpt")


def swapped(rank, folder, algorithm, saving):
    ema = EMAWeightAveraging(decay=0.8)
    net, plain = Net(), Net()
    callbacks = [SavingLast(folder), ema] if saving == "first" else [ema, SavingLast(folder)]
    if saving == "weights_only":
        callbacks = [ema, Saving(folder, True)]
    fit(net, algorithm, callbacks=callbacks)
    fit(plain, algorithm, callbacks=[EMAWeightAveraging(decay=0.8)])
    return net.history, plain.history, net.validated, plain.validated


@pytest.mark.parametrize("saving", ["weights_only", "last"])
@pytest.mark.parametrize("algorithm", [{"name": "bsp"}, {"name": "local_sgd", "steps": 5}], ids=str)
def test_saving_where_an_average_of_weights_is_validated_leaves_it(algorithm, saving, tmp_path):
    for history, plain, validated, undisturbed in on_ranks(swapped, str(tmp_path), algorithm, saving):
        assert torch.equal(torch.stack(history), torch.stack(plain))
        assert torch.equal(torch.stack(validated), torch.stack(undisturbed))


@pytest.mark.parametrize("algorithm", [{"name": "bsp"}, {"name": "local_sgd", "steps": 5}], ids=str)
def test_saving_while_an_average_of_weights_is_swapped_in_is_refused(algorithm, tmp_path):
    with pytest.raises(RankError) as error:
        on_ranks(swapped, str(tmp_path), algorithm, "first")
    assert len(error.value.errors) == SIZE
    assert all("save in on_validation_end" in text for _, text in error.value.errors.values())


def averaging(rank, kind, algorithm, folder, epochs, ckpt_path=None):
    """With an average of the weights, of which nobody sees the parts."""
    average = {
        "ema": lambda: EMAWeightAveraging(decay=0.9),
        "swa": lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1),
    }[kind]()
    net = Net()
    options = {
        "enable_checkpointing": True,
        "callbacks": [average, ModelCheckpoint(folder, "{epoch}", save_top_k=-1)],
    }
    with pytest.warns(match="averages its own replica") if rank == 0 else nullcontext():
        fit(net, algorithm, ckpt_path=ckpt_path, max_epochs=epochs, **options)
    return flat(net)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_each_rank_goes_on_with_its_own_average(kind, tmp_path):
    algorithm = {"name": "local_sgd", "steps": 5}
    whole = on_ranks(averaging, kind, algorithm, str(tmp_path), 3)
    rest = on_ranks(averaging, kind, algorithm, f"{tmp_path}/rest", 3, f"{tmp_path}/epoch=1.ckpt")
    for end, end_after in zip(whole, rest, strict=True):
        assert torch.equal(end, end_after)
    fewer = on_ranks(averaging, kind, algorithm, f"{tmp_path}/two", 3, f"{tmp_path}/epoch=1.ckpt", size=2)
    assert torch.equal(*fewer)

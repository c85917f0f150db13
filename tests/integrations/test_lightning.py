"""Lightning's Trainer over relaxcomm, on real ranks: what DDP does, what replicas do, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import StrategyRegistry
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from relaxcomm.errors import ConfigError
from relaxcomm.integrations.lightning import LogStatistics, RelaxcommStrategy
from tests.integrations.lightning_runs import SIZE, Net, ddp, fit, flat, on_ranks, samples
from tests.ranks import RankError

pytestmark = pytest.mark.ranks
STEPS = 12  # of two epochs
LOCAL = {"name": "local_sgd", "steps": 5}
integrations = pytest.mark.integrations


def both(rank, algorithm, options):
    """The parameters after each step, with relaxcomm and with DDP, and the engine's statistics."""
    ours, theirs = Net(), Net()
    trainer = fit(ours, algorithm, **options)
    fit(theirs, ddp(), **options)
    return ours.history, theirs.history, dict(trainer.strategy.engine.statistics)


def thin(rank):
    local = Net()
    fit(local, LOCAL, max_epochs=1, limit_train_batches=5)
    return *both(rank, {"name": "bsp"}, {}), local.history, flat(local)


def test_bsp_is_ddp_and_local_sgd_parts_and_meets():
    results = on_ranks(thin)
    assert StrategyRegistry.get("relaxcomm").config == "auto"
    for ours, theirs, statistics, _, _ in results:
        torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), rtol=1e-5, atol=1e-5)
        assert statistics["synchronisations"] == statistics["steps"] == len(ours) == STEPS
        assert not statistics["evaluation_bytes_sent"]  # validated, and equal on all ranks
    local, ends = [history for *_, history, _ in results], [end for *_, end in results]
    for step in range(4):
        assert not torch.equal(local[0][step], local[1][step])
    assert torch.equal(local[0][4], local[1][4])
    assert torch.equal(ends[0], ends[2])


OPTIONS = {
    "accumulation": {"accumulate_grad_batches": 3},
    "clipping": {"gradient_clip_val": 0.05},
    "clipping_values": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "bf16": {"precision": "bf16-mixed"},
    "float64": {"precision": "64-true"},
}


@integrations
@pytest.mark.parametrize("name", OPTIONS)
def test_what_a_trainer_does_stays_what_it_does_under_ddp(name):
    whole = on_ranks(both, {"name": "bsp"}, {})[0][2]["bytes_sent"]
    for ours, theirs, statistics in on_ranks(both, {"name": "bsp"}, OPTIONS[name]):
        close = 1e-3 if name == "bf16" else 1e-5
        torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), rtol=close, atol=close)
        accumulated = OPTIONS[name].get("accumulate_grad_batches", 1)
        assert statistics["synchronisations"] == statistics["steps"] == STEPS // accumulated
    if name == "accumulation":  # the model is broadcast once in both
        assert statistics["bytes_sent"] < whole / 2


def fp16(rank, strategy, overflow):
    plugin = MixedPrecision(
        "16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    )
    net = Overflowing(rank) if overflow else Net()
    trainer = fit(net, ddp() if strategy == "ddp" else strategy, plugins=[plugin])
    return net.history, trainer.precision_plugin.scaler.get_scale(), flat(net)


class Overflowing(Net):
    """The gradients of rank 1 overflow in the third batch."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        return loss * (float("inf") if (self.rank, index) == (1, 2) else 1.0)


@integrations
@pytest.mark.parametrize("overflow", [False, True])
def test_a_grad_scaler_is_followed(overflow):
    theirs = on_ranks(fp16, "ddp", overflow)
    for (ours, scale, _), (expected, their_scale, _) in zip(
        on_ranks(fp16, {"name": "bsp"}, overflow), theirs, strict=True
    ):
        torch.testing.assert_close(torch.stack(ours), torch.stack(expected), rtol=1e-3, atol=1e-3)
        assert scale == their_scale
        assert torch.equal(ours[1], ours[2]) == overflow
    local = on_ranks(fp16, {"name": "local_sgd", "steps": 4}, overflow)
    assert [torch.equal(history[1], history[2]) for history, _, _ in local] == [False, overflow, False]
    assert torch.equal(local[0][2], local[1][2])


@integrations
@pytest.mark.filterwarnings("ignore::Warning")
def test_lightning_turns_fp16_into_bf16_on_the_cpu():
    with pytest.warns(match="fp16 is not supported on CPU"):
        trainer = pl.Trainer(accelerator="cpu", devices=1, precision="16-mixed", logger=False)
    assert trainer.scaler is None


ALGORITHMS = {
    "ssp": {"name": "ssp", "staleness": 2},
    "d_psgd": {"name": "d_psgd"},
    "choco_sgd": {"name": "choco_sgd"},
    "powersgd": {"name": "powersgd"},
    "ad_psgd": {"name": "ad_psgd"},
    "streaming_diloco": {"name": "streaming_diloco", "steps": 4, "delay": 1},
    "auto": "relaxcomm",
}


def trained(rank, algorithm):
    net, losses = Net(), Losses()
    trainer = fit(net, algorithm, max_epochs=6, callbacks=[losses])
    return losses.found, flat(net), net.validated, trainer.strategy.engine.statistics["steps"]


class Losses(pl.Callback):
    """Notes what validations find."""

    def __init__(self):
        self.found = []

    def on_validation_end(self, trainer, module):
        self.found.append(float(trainer.callback_metrics["validation"]))


@integrations
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_family_trains_and_validates_one_model(name):
    results = on_ranks(trained, ALGORITHMS[name])
    for losses, end, validated, steps in results:
        assert losses[-1] < losses[0] / 1.4
        assert losses == results[0][0]
        assert steps == 36
        torch.testing.assert_close(end, results[0][1])
        for mine, first in zip(validated, results[0][2], strict=True):
            torch.testing.assert_close(mine, first)


def validated_in_a_round(rank, accumulate):
    options = {"accumulate_grad_batches": accumulate}
    net, plain = Net(norm=True), Net(norm=True)
    fit(net, {"name": "local_sgd", "steps": 100}, val_check_interval=2, **options)
    fit(plain, {"name": "local_sgd", "steps": 100}, limit_val_batches=0, **options)
    return net.history, plain.history, net.validated


@integrations
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_validation_in_a_local_phase_sees_the_mean_and_leaves_replicas_as_they_are(accumulate):
    results = on_ranks(validated_in_a_round, accumulate)
    for history, plain, _ in results:
        assert torch.equal(torch.stack(history), torch.stack(plain))
    mean = torch.stack([history[1] for history, _, _ in results]).mean(0)
    for _, _, validated in results:
        torch.testing.assert_close(validated[0], mean)


class Shared(Net):
    """Its batches come from the engine."""

    def __init__(self):
        super().__init__(dropout=0.0)
        self.read = []

    def train_dataloader(self):
        return self.trainer.strategy.engine.loader(samples(), batch_size=4)

    def training_step(self, batch, index):
        self.read += [tuple(row.tolist()) for row in batch[0]]
        return super().training_step(batch, index)


def shared(rank):
    net = Shared()
    fit(net, {"name": "bsp"}, use_distributed_sampler=False)
    return net.read


@integrations
def test_a_loader_of_the_engine():
    read = on_ranks(shared)
    for epoch in (slice(0, 24), slice(24, 48)):
        assert len({row for rows in read for row in rows[epoch]}) == len(samples())
    assert read[0][:24] != read[0][24:]


SCRIPT = """
import sys
from tests.integrations.lightning_runs import Net, flat
from relaxcomm.integrations.lightning import RelaxcommStrategy
import lightning.pytorch as pl

if __name__ == "__main__":
    strategy = RelaxcommStrategy({"algorithm": {"name": "local_sgd", "steps": 5}}, start_method=sys.argv[1])
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, **quiet)
    net = Net(dropout=0.0)
    trainer.fit(net)
    if trainer.is_global_zero:
        print("END", trainer.strategy.engine is None, float(flat(net).norm()))
"""


@integrations
def test_lightnings_own_launchers(tmp_path):
    """The same training by three ways to start it, without torchrun."""
    script, ends = tmp_path / "script.py", {}
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    for method in ("popen", "spawn", "fork"):
        command = [sys.executable, str(script), method]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        (ends[method],) = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("END")]
    assert [found[0] for found in ends.values()] == ["False", "True", "True"]
    assert len({norm for _, norm in ends.values()}) == 1


class Gan(pl.LightningModule):
    """Two optimizers that take turns, as Lightning's documentation has them."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.automatic_optimization = how, False
        self.generator = nn.Linear(4, 8)
        self.critic = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, index):
        x, first, second = batch[0], *self.optimizers()
        draw = torch.Generator().manual_seed(100 * index + self.global_rank)
        noise = torch.randn(len(x), 4, generator=draw)

        def generate():
            first.zero_grad()
            self.manual_backward(-self.critic(self.generator(noise)).sigmoid().mean())

        def judge():
            second.zero_grad()
            made = self.critic(self.generator(noise).detach()).sigmoid().mean()
            self.manual_backward(made - self.critic(x).sigmoid().mean())

        for optimizer, closure in ((first, generate), (second, judge)):
            if self.how == "closures":
                optimizer.step(closure)
                continue
            self.toggle_optimizer(optimizer)
            closure()
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters()) for part in (self.generator, self.critic)]

    def train_dataloader(self):
        return DataLoader(samples(), batch_size=4)


def gan(rank, how, algorithm):
    ours, theirs = Gan(how), Gan(how)
    trainer = fit(ours, algorithm)
    fit(theirs, ddp())
    return flat(ours), flat(theirs), trainer.strategy.engine.statistics["steps"]


@integrations
@pytest.mark.parametrize("how", ["toggled", "closures"])
def test_manual_optimization_of_two_optimizers(how):
    for ours, theirs, steps in on_ranks(gan, how, {"name": "bsp"}):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert steps == STEPS  # both optimizers make one
    results = on_ranks(gan, how, LOCAL)
    assert torch.equal(results[0][0], results[1][0])


def manual(rank, accumulate):
    net = Manual(accumulate)
    trainer = fit(net, {"name": "bsp"})
    return net.history[-1], trainer.strategy.engine.statistics["synchronisations"]


class Manual(Net):
    """Accumulates two batches by hand."""

    def __init__(self, accumulate):
        super().__init__()
        self.automatic_optimization, self.accumulate = False, accumulate

    def training_step(self, batch, index):
        optimizer, ends = self.optimizers(), index % self.accumulate == self.accumulate - 1
        with optimizer.toggle_model(sync_grad=ends):
            self.manual_backward(super().training_step(batch, index))
        if ends:
            optimizer.step()
            optimizer.zero_grad()


@integrations
def test_manual_accumulation_exchanges_once_a_step():
    for accumulate in (1, 2):
        results = on_ranks(manual, accumulate)
        for end, synchronisations in results:
            assert synchronisations == STEPS // accumulate
            assert torch.equal(end, results[0][0])


def twice(rank, folder):
    net, log = Net(), pl.loggers.CSVLogger(folder, name="", version="")
    options = {"logger": log, "log_every_n_steps": 3, "callbacks": [LogStatistics()]}
    trainer = fit(net, LOCAL, **options)
    first = trainer.strategy.engine
    trainer.fit_loop.max_epochs = 3
    trainer.fit(net)
    second = trainer.strategy.engine
    assert [first.closed, second.closed] == [True, True]
    assert trainer.validate(net, verbose=False)
    return first.statistics["steps"], second.statistics["steps"], flat(net)


@integrations
def test_fit_twice_and_logged_statistics(tmp_path):
    results = on_ranks(twice, str(tmp_path))
    assert [(first, second) for first, second, _ in results] == [(12, 6)] * SIZE
    assert torch.equal(results[0][2], results[1][2])
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    steps = [line.split(",")[names.index("relaxcomm/steps")] for line in lines[1:]]
    assert [int(float(step)) for step in steps if step] == [3, 6, 9, 12, 3, 6]


def stopped(rank):
    net = Net()
    stopping = pl.callbacks.EarlyStopping("validation", patience=1, min_delta=1e9)
    trainer = fit(net, LOCAL, max_epochs=9, callbacks=[stopping])
    return trainer.strategy.engine.statistics["steps"], flat(net)


@integrations
def average_with_norm(rank, strategy):
    """Lightning adds an epoch without backward, which measures BatchNorm's statistics."""
    net, average = Net(norm=True), StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)
    trainer = fit(net, strategy, callbacks=[average], max_epochs=3)
    with torch.no_grad():
        expected = net.net[0](samples()[:][0]).mean(0)
    weights, averaged = (
        nn.utils.parameters_to_vector(one.parameters()).detach() for one in (net, average._average_model)
    )
    return weights, averaged, net.net[1].running_mean, expected, trainer.global_step


@integrations
def test_weights_stay_their_average_while_batch_norm_is_measured():
    theirs = on_ranks(average_with_norm, "ddp")[0]
    for weights, averaged, found, expected, steps in on_ranks(average_with_norm, {"name": "bsp"}):
        torch.testing.assert_close(weights, averaged, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(averaged, theirs[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert steps == theirs[-1]
    local = on_ranks(average_with_norm, LOCAL)
    mean = torch.stack([averaged for _, averaged, *_ in local]).mean(0)
    for weights, *_ in local:
        torch.testing.assert_close(weights, mean, rtol=1e-6, atol=1e-6)


def test_early_stopping_ends_all_ranks_together():
    results = on_ranks(stopped)
    assert [steps for steps, _ in results] == [STEPS] * SIZE
    assert torch.equal(results[0][1], results[2][1])


class Wrapped(Net):
    """A part of it is under DDP already."""

    def setup(self, stage):
        self.net = DistributedDataParallel(self.net)


class Lbfgs(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Uneven(Net):
    """The last rank has a batch less."""

    def train_dataloader(self):
        return DataLoader(samples(20 if self.global_rank < SIZE - 1 else 16), batch_size=4)


REFUSED = {
    "wrapped": (Wrapped, {"name": "bsp"}, {}, "net is under DistributedDataParallel"),
    "lbfgs": (Lbfgs, {"name": "bsp"}, {}, "LBFGS runs forward and backward several times"),
    "fedavg": (Net, {"name": "fedavg"}, {}, "fedavg chooses the batches"),
    "adaptive": (Net, {"name": "adaptive_local_sgd", "max_batch_size": 64}, {}, "sgd chooses the batches"),
    "uneven": (Uneven, LOCAL, {"use_distributed_sampler": False}, "have 5, 5, 4 training batches"),
    "unknown": (Net, {"name": "dsp"}, {}, "dsp"),
}


def refused(rank, name):
    module, algorithm, options, _ = REFUSED[name]
    fit(module(), algorithm, **options)


@integrations
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_on_every_rank(name):
    with pytest.raises(RankError) as error:
        on_ranks(refused, name)
    assert len(error.value.errors) == SIZE
    for _, text in error.value.errors.values():
        assert REFUSED[name][-1] in text


def gan_topk(rank):
    fit(Gan("toggled"), {"name": "topk_sgd"})


@integrations
def test_compressors_with_memory_refuse_two_backwards_in_a_step():
    with pytest.raises(RankError) as error:
        on_ranks(gan_topk)
    assert all("a second synchronising backward" in text for _, text in error.value.errors.values())


def elastic(rank):
    fit(Net(), RelaxcommStrategy({"algorithm": "bsp", "membership": {"elastic": True}}))


@integrations
def test_elastic_membership_is_refused():
    with pytest.raises(RankError) as error:
        on_ranks(elastic)
    assert len(error.value.errors) == SIZE
    assert all("elastic" in text for _, text in error.value.errors.values())


def test_an_option_of_ddp_is_refused():
    with pytest.raises(ConfigError, match="no option 'find_unused_parameters'"):
        RelaxcommStrategy("bsp", find_unused_parameters=True)
    assert RelaxcommStrategy("bsp", start_method="spawn")._start_method == "spawn"


class Breaking(Net):
    """Fails on rank 1."""

    def training_step(self, batch, index):
        if index == 3 and self.global_rank == 1:
            raise RuntimeError("no such file")
        return super().training_step(batch, index)


def broken(rank):
    fit(Breaking(), {"name": "bsp"})


@integrations
def test_an_exception_in_a_rank_ends_the_others():
    with pytest.raises(RankError) as error:
        on_ranks(broken)
    assert error.value.errors[1] == ("RuntimeError", "no such file")
    for rank in (0, 2):
        assert "rank 1" in error.value.errors[rank][1]
        assert "no such file" in error.value.errors[rank][1]

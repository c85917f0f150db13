"""Accelerate's own training loop, with relaxcomm in the place of its DistributedDataParallel."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import relaxcomm
from tests.engine.harness import on_gloo, values

accelerate = pytest.importorskip("accelerate")

from relaxcomm.integrations.accelerate import Accelerator  # noqa: E402  # it is there
from tests.integrations.launched import launched  # noqa: E402

pytestmark = pytest.mark.ranks
integrations = pytest.mark.integrations
RANKS, STEPS = 3, 6
TOP_K = {
    "rules": [
        {
            "payload": "gradients",
            "compressor": {"error_feedback": {"top_k": {"density": 0.1}}},
            "exchange": "all_gather",
        }
    ]
}


def settings(algorithm):
    return {"algorithm": algorithm, "bucket_bytes": 512, "timeout_seconds": 60}


class Scaled(Accelerator):
    """Accelerate uses no GradScaler on the CPU; this one does as on a GPU."""

    def __init__(self, init_scale=2.0**8, **options):
        super().__init__(**options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=3)
        self.native_amp = True


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def make_data(steps):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4 * RANKS * steps, 8, generator=draw)
    return TensorDataset(x, torch.stack([x.sum(1), x[:, 0], -x[:, 1], x[:, 2] * x[:, 3]], dim=1))


def loop(accelerator, prepared, history):
    """As Accelerate's documentation writes it."""
    model, optimizer, loader, scheduler = prepared
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            norm = None
            if accelerator.sync_gradients:
                norm = float(accelerator.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if norm is not None:
            history.append((values(accelerator.unwrap_model(model)), norm, scheduler.get_last_lr()[0]))


def parts(steps):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    loader = DataLoader(make_data(steps), batch_size=4, shuffle=True, generator=torch.Generator())
    return model, optimizer, loader, scheduler


def train(world, algorithm, accumulate=1, kind=Accelerator, **options):
    """Parameters, norms and rates of each step, and the engine's counts; None: with Accelerate's DDP."""
    with launched(world):
        options = {"cpu": True, "gradient_accumulation_steps": accumulate, **options}
        if algorithm is None:
            accelerator = accelerate.Accelerator(**options)
        else:
            accelerator = kind(relaxcomm=settings(algorithm), **options)
        prepared = accelerator.prepare(*parts(STEPS * accumulate))
        history, statistics = [], {}
        loop(accelerator, prepared, history)
        if algorithm is not None:
            accelerator.engine.close()
            statistics = dict(accelerator.engine.statistics)
        history.append((values(accelerator.unwrap_model(prepared[0])), 0.0, 0.0))
        return history, statistics


def assert_same(found, expected, tolerance=1e-5):
    for (history, _), (reference, _) in zip(found, expected, strict=True):
        assert len(history) == len(reference) == STEPS + 1
        for ours, theirs in zip(history, reference, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_bsp_equals_distributed_data_parallel():
    assert_same(on_gloo(train, RANKS, "bsp"), on_gloo(train, RANKS, None))


@integrations
def test_accumulation_exchanges_once_a_step():
    once = on_gloo(train, RANKS, "bsp")
    found = on_gloo(train, RANKS, "bsp", 3)
    assert_same(found, on_gloo(train, RANKS, None, 3))
    for (_, counts), (_, expected) in zip(found, once, strict=True):
        assert counts["synchronisations"] == counts["steps"] == STEPS
        assert counts["bytes_sent"] == expected["bytes_sent"] > 0


def half(world, algorithm):
    return train(world, algorithm, mixed_precision="bf16")


@integrations
def test_bfloat16_equals_distributed_data_parallel():
    found = on_gloo(half, RANKS, "bsp")
    assert_same(found, on_gloo(half, RANKS, None), 1e-3)
    full = on_gloo(train, RANKS, "bsp")
    assert not np.allclose(found[0][0][-1][0], full[0][0][-1][0], rtol=1e-6, atol=1e-6)


def scaled(world, init_scale):
    return train(world, "bsp", kind=Scaled, init_scale=init_scale, mixed_precision="fp16")


@integrations
def test_a_grad_scaler_skips_on_all_ranks():
    found = on_gloo(scaled, RANKS, 2.0**8)
    assert_same(found, on_gloo(train, RANKS, "bsp"), 2e-2)
    start = values(make_model())
    for history, statistics in on_gloo(scaled, RANKS, 2.0**40):
        np.testing.assert_array_equal(history[0][0], start)  # an infinite gradient: nobody steps
        assert statistics["steps"] == STEPS
        assert history[0][2] == 0.1


@integrations
def test_local_sgd_parts_and_meets():
    found = [history for history, _ in on_gloo(train, RANKS, {"name": "local_sgd", "steps": 3})]
    for step in range(STEPS):
        equal = all(np.array_equal(found[0][step][0], other[step][0]) for other in found[1:])
        assert equal == ((step + 1) % 3 == 0)


@integrations
@pytest.mark.parametrize("algorithm", ["ssp", "d_psgd", {"name": "local_sgd", "steps": 3}, TOP_K])
def test_algorithms_train(algorithm):
    found = [history for history, _ in on_gloo(train, RANKS, algorithm)]
    for history in found:
        np.testing.assert_allclose(history[-1][0], found[0][-1][0], rtol=1e-6, atol=1e-6)
        assert loss_of(history[-1][0]) < 0.95 * loss_of(values(make_model()))


def loss_of(parameters):
    model = make_model()
    nn.utils.vector_to_parameters(torch.tensor(parameters, dtype=torch.float32), model.parameters())
    x, y = make_data(STEPS).tensors
    return float(nn.functional.mse_loss(model(x), y).detach())


def compiled(world):
    return train(world, "bsp", 2, dynamo_backend="eager")


@integrations
def test_a_compiled_model_trains_the_same():
    found = on_gloo(compiled, RANKS)
    assert_same(found, on_gloo(train, RANKS, "bsp", 2))
    assert all(counts["synchronisations"] == STEPS for _, counts in found)


def saved_and_resumed(world, algorithm, folder, spans, named):
    """Train by epochs, each in an Accelerator of its own, going on from the state that the last one saved."""
    history = []
    for span in spans:
        with launched(world):
            project = accelerate.utils.ProjectConfiguration(
                project_dir=folder, automatic_checkpoint_naming=named
            )
            data = accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
            accelerator = Accelerator(
                cpu=True, relaxcomm=settings(algorithm), project_config=project, dataloader_config=data
            )
            prepared = accelerator.prepare(*parts(4))
            if span.start:
                accelerator.load_state(None if named else folder)
                project.iteration = 1  # as Accelerate asks for
            for epoch in span:
                prepared[2].set_epoch(epoch)
                loop(accelerator, prepared, history)
            accelerator.save_state(None if named else folder)
            accelerator.engine.close(average=False)
    return history


@integrations
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("algorithm", [{"name": "local_sgd", "steps": 3}, TOP_K], ids=["local_sgd", "top_k"])
def test_state_resumes_bit_for_bit(algorithm, named, tmp_path):
    whole = on_gloo(saved_and_resumed, RANKS, algorithm, str(tmp_path / "a"), [range(2)], named)
    resumed = on_gloo(
        saved_and_resumed, RANKS, algorithm, str(tmp_path / "b"), [range(1), range(1, 2)], named
    )
    for one, other in zip(resumed, whole, strict=True):
        assert len(one) == 8
        for ours, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
            assert ours[1:] == theirs[1:]
    if algorithm is not TOP_K:
        assert not np.array_equal(whole[0][3][0], whole[1][3][0])  # saved in the middle of a local phase


class Tracker(accelerate.tracking.GeneralTracker):
    name, requires_logging_directory, main_process_only = "kept", False, True

    def __init__(self):
        super().__init__()
        self.kept = []

    tracker = property(lambda self: self)

    def log(self, values, step=None, **options):
        self.kept.append((step, values))


def evaluated(world):
    tracker = Tracker()
    with launched(world):
        accelerator = Accelerator(
            cpu=True, relaxcomm=settings({"name": "local_sgd", "steps": 4}), log_with=tracker
        )
        accelerator.init_trackers("run")
        prepared = accelerator.prepare(*parts(STEPS))
        loop(accelerator, prepared, [])
        data = make_data(STEPS)
        held_out = accelerator.prepare(DataLoader(TensorDataset(*(part[:10] for part in data.tensors)), 3))
        with accelerator.engine.averaged(), torch.no_grad():
            mean = values(prepared[0])
            found = torch.cat(
                [
                    accelerator.gather_for_metrics(
                        nn.functional.mse_loss(prepared[0](x), y, reduction="none")
                    )
                    for x, y in held_out
                ]
            )
        accelerator.log({**accelerator.engine.statistics}, step=STEPS)
        accelerator.wait_for_everyone()
        with mock.patch.object(type(accelerator.state), "destroy_process_group"):  # it is the test pool's
            accelerator.end_training()
        with pytest.raises(relaxcomm.UsageError, match="closed"):
            accelerator.engine.state_dict()
        return mean, found.numpy(), tracker.kept


@integrations
def test_metrics_are_gathered_and_logged():
    results = on_gloo(evaluated, RANKS)
    for mean, found, kept in results:
        np.testing.assert_array_equal(mean, results[0][0])
        assert found.shape == (10, 4)  # none twice, though 10 are no multiple of 9
        np.testing.assert_array_equal(found, results[0][1])
        assert len(kept) == (1 if kept is results[0][2] else 0)
    ((step, logged),) = results[0][2]
    assert (step, logged["steps"]) == (STEPS, STEPS)
    assert logged["bytes_sent"] > 0


def two_models(world):
    with launched(world):
        accelerator = Accelerator(cpu=True, relaxcomm=settings("bsp"))
        networks, optimizers = [], []
        for width in (3, 4):
            network = nn.Linear(2, width)
            networks.append(network)
            optimizers.append(torch.optim.SGD(network.parameters(), lr=0.1))
        *networks, first, second = accelerator.prepare(*networks, *optimizers)
        for network, optimizer in zip(networks, (first, second), strict=True):
            for _ in range(network.out_features):
                accelerator.backward(network(torch.full((1, 2), float(world.rank))).sum())
                optimizer.step()
                optimizer.zero_grad()
        with pytest.raises(relaxcomm.UsageError, match="2 models"):
            accelerator.engine.close()
        steps = [accelerator.engine_of(network).statistics["steps"] for network in networks]
        accelerator.free_memory()
        return steps, [values(network) for network in networks]


@integrations
def test_two_models_have_an_engine_each():
    results = on_gloo(two_models, RANKS)
    for steps, found in results:
        assert steps == [3, 4]
        for one, other in zip(found, results[0][1], strict=True):
            np.testing.assert_array_equal(one, other)


def one_optimizer(world, algorithm, folder):
    """It steps an encoder and a head, whose parameters after each step are returned; a third has its own."""
    with launched(world):
        encoder, _, head, *_ = make_model()
        both, alone = nn.ModuleList([encoder, head]), nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (alone, both)]
        accelerator = prepared_by(algorithm)
        head, alone, encoder, _, optimizer = accelerator.prepare(head, alone, encoder, *optimizers)
        x, history = torch.randn(12, 8, generator=torch.Generator().manual_seed(world.rank)), []
        for step, row in enumerate(x):
            with accelerator.accumulate(encoder, head):
                accelerator.backward(head(encoder(row).tanh()).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                history.append(values(both))
            if step == 5:
                accelerator.save_state(folder)
        engines = []
        if algorithm is not None:
            accelerator.load_state(folder)
            np.testing.assert_array_equal(values(both), history[2])
            engines = [accelerator.engine_of(one) for one in (encoder, head, alone)]
            accelerator.free_memory()
        return history, [engines.index(one) for one in engines]


def prepared_by(algorithm):
    """An Accelerator that accumulates; without an algorithm Accelerate's own."""
    options = {"cpu": True, "gradient_accumulation_steps": 2}
    if algorithm is None:
        return accelerate.Accelerator(**options)
    return Accelerator(relaxcomm=settings(algorithm), **options)


@integrations
def test_models_of_one_optimizer_have_an_engine_together(tmp_path):
    (expected, _), *_ = on_gloo(one_optimizer, RANKS, None, str(tmp_path / "ddp"))
    for history, engines in on_gloo(one_optimizer, RANKS, "bsp", str(tmp_path / "bsp")):
        assert engines == [0, 0, 2]
        np.testing.assert_allclose(history, expected, rtol=1e-5, atol=1e-5)
    local = on_gloo(one_optimizer, RANKS, {"name": "local_sgd", "steps": 3}, str(tmp_path / "local"))
    first, second = local[0][0], local[1][0]
    assert np.abs(first[1] - second[1]).max() > 1e-6
    np.testing.assert_array_equal(first[2], second[2])


def refusal(world, provoke, folder):
    with launched(world), pytest.raises(Exception) as caught:  # noqa: PT011  # which one the test looks at
        provoke(folder)
    return type(caught.value).__name__, str(caught.value)


def ours(**options):
    return Accelerator(cpu=True, relaxcomm=settings("bsp"), **options)


def fully_sharded(_):
    kind = accelerate.utils.DistributedType.FSDP  # Accelerate itself wants GPUs for it
    with mock.patch.object(accelerate.Accelerator, "distributed_type", kind):
        ours()


def ddp_settings(_):
    ours(kwargs_handlers=[accelerate.utils.DistributedDataParallelKwargs(bucket_cap_mb=1)])


def no_optimizer(_):
    ours().prepare(make_model())


def no_model(_):
    accelerator, model = ours(), make_model()
    accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))


def wrapped_model(_):
    model = nn.parallel.DistributedDataParallel(make_model())
    ours().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def attached_by_hand(_):
    accelerator = accelerate.Accelerator(cpu=True)
    model = make_model()
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    relaxcomm.attach(model, optimizer, "bsp")


def one_process(_):
    Accelerator(relaxcomm="bsp").prepare(*parts(1))


def engine_loader(_):
    accelerator = ours()
    accelerator.prepare(*parts(1))
    with accelerator.engine as engine:
        accelerator.prepare(engine.loader(make_data(2), batch_size=4))


def uneven(_):
    accelerator = ours()
    model, *_ = accelerator.prepare(*parts(1))
    with accelerator.engine, accelerator.join_uneven_inputs([model]):
        pass


def triggered(_):
    accelerator = ours()
    model, *_ = accelerator.prepare(*parts(1))
    with accelerator.engine, accelerator.trigger_sync_in_backward(model):
        pass


def clients(_):
    accelerator = Accelerator(cpu=True, relaxcomm=settings({"name": "fedavg", "epochs": 1}))
    prepared = accelerator.prepare(*parts(1))
    with accelerator.engine:
        loop(accelerator, prepared, [])


def unknown_name(_):
    Accelerator(cpu=True, relaxcomm="local_sdg").prepare(*parts(1))


def elastic(_):
    config = {**settings("bsp"), "membership": {"elastic": True}}
    Accelerator(cpu=True, relaxcomm=config).prepare(*parts(1))


def saved_without(folder):
    plain = accelerate.Accelerator(cpu=True)
    plain.prepare(*parts(1))
    plain.save_state(folder)
    plain.wait_for_everyone()
    accelerator = ours()
    accelerator.prepare(*parts(1))
    with accelerator.engine:
        accelerator.load_state(folder)


@integrations
@pytest.mark.parametrize(
    ("provoke", "kind", "words"),
    [
        (fully_sharded, "CompositionError", "FSDP, which shards or exchanges by itself"),
        (ddp_settings, "UsageError", "no model is wrapped"),
        (no_optimizer, "UsageError", "without its optimizers"),
        (no_model, "UsageError", "together with its model"),
        (wrapped_model, "CompositionError", "`model.module`"),
        (attached_by_hand, "UsageError", "integrations.accelerate.Accelerator"),
        (one_process, "UsageError", "cpu=True"),
        (engine_loader, "UsageError", "do not prepare it"),
        (uneven, "UsageError", "accelerator.engine.join"),
        (triggered, "UsageError", "no_sync"),
        (clients, "UsageError", "must come from engine.loader"),
        (unknown_name, "ConfigError", "local_sgd"),
        (elastic, "UsageError", "begin again from a checkpoint"),
        (saved_without, "ConfigError", "saved without relaxcomm"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(provoke, kind, words, tmp_path):
    for found, text in on_gloo(refusal, RANKS, provoke, str(tmp_path)):
        assert found == kind
        assert words in text


def refused_then_trained(world):
    """What was refused leaves nothing behind."""
    with launched(world):
        accelerator, everything = ours(), parts(2)
        foreign = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        with pytest.raises(relaxcomm.UsageError):
            accelerator.prepare(*everything, foreign)
        prepared = accelerator.prepare(*everything)
        history = []
        with accelerator.engine:
            loop(accelerator, prepared, history)
        return history[-1][0]


@integrations
def test_a_refusal_leaves_nothing_behind():
    first, *others = on_gloo(refused_then_trained, RANKS)
    for other in others:
        np.testing.assert_array_equal(first, other)

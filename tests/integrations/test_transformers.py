"""Transformers' Trainer, with relaxcomm in the place of its DistributedDataParallel."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.engine.harness import on_gloo, values

transformers = pytest.importorskip("transformers")

from relaxcomm.integrations.transformers import Trainer  # noqa: E402  # it is there
from tests.integrations.launched import launched  # noqa: E402

pytestmark = [pytest.mark.ranks, pytest.mark.integrations]
RANKS, STEPS = 3, 6
LOCAL_SGD = {"name": "local_sgd", "steps": 4}
TOP_K = {"payload": "gradients", "exchange": "all_gather"}
TOP_K = {"rules": [{**TOP_K, "compressor": {"error_feedback": {"top_k": {"density": 0.1}}}}]}


def settings(algorithm):
    return {"algorithm": algorithm, "bucket_bytes": 4096, "timeout_seconds": 60}


def make_model(dropout=0.0):
    torch.manual_seed(0)
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, **rates
    )
    model = transformers.GPT2LMHeadModel(config)
    model.register_buffer("frequencies", torch.ones(4), persistent=False)  # a cache, as of rotary models
    return model


def make_data(size):
    """Numbers that count up modulo 17."""
    rows = (torch.arange(12) + torch.arange(size)[:, None]) % 17
    return [{"input_ids": row, "labels": row} for row in rows]


class Watch(transformers.TrainerCallback):
    """Keeps the parameters after each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, model=None, **facts):
        self.seen.append(values(model))


def make_trainer(algorithm, folder, kind=Trainer, model=None, steps=STEPS, accumulate=1, **options):
    options = {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": accumulate,
        "learning_rate": 0.01,
        "max_grad_norm": 0.5,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        **options,
    }
    ours = {} if algorithm is None else {"relaxcomm": settings(algorithm)}
    return (transformers.Trainer if algorithm is None else kind)(
        make_model() if model is None else model,
        transformers.TrainingArguments(**options),
        train_dataset=make_data(2 * RANKS * STEPS * accumulate),
        eval_dataset=make_data(13),
        callbacks=[Watch()],
        **ours,
    )


def history(trainer):
    (watch,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, Watch))
    return watch.seen


def train(world, algorithm, folder, options=None):
    """Parameters after each step and after the end, the engine's counts, and what was logged."""
    with launched(world):
        trainer = make_trainer(algorithm, folder, **(options or {}))
        trainer.train()
        counts = dict(trainer.engine.statistics) if algorithm is not None else {}
        return [*history(trainer), values(trainer.model)], counts, trainer.state.log_history


def assert_same(found, expected, tolerance=1e-5):
    for (ours, *_), (theirs, *_) in zip(found, expected, strict=True):
        assert len(ours) == len(theirs) > STEPS
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def norms(found):
    return [[entry["grad_norm"] for entry in logs if "grad_norm" in entry] for _, _, logs in found]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_bsp_equals_distributed_data_parallel(accumulate, tmp_path):
    options = {"accumulate": accumulate, "eval_strategy": "steps", "eval_steps": 3}
    found = on_gloo(train, RANKS, "bsp", str(tmp_path), options)
    expected = on_gloo(train, RANKS, None, str(tmp_path), options)
    assert_same(found, expected)
    np.testing.assert_allclose(norms(found), norms(expected), rtol=1e-4)  # of the averaged gradients
    assert min(norms(found)[0]) > 0.5  # all were clipped
    per_step = 4 * make_model().num_parameters()
    for _, counts, _ in found:
        assert counts["synchronisations"] == counts["steps"] == STEPS
        assert counts["bytes_sent"] < 2.5 * STEPS * per_step  # not once for each micro-batch
        assert not counts["evaluation_bytes_sent"]  # replicas are equal


@pytest.mark.parametrize(
    "options",
    [
        {"bf16": True, "optim": "sgd", "learning_rate": 0.1},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"torch_compile": True, "torch_compile_backend": "eager"},
    ],
    ids=["bf16", "checkpointing", "reentrant", "compile"],
)
def test_options_of_the_trainer_work(options, tmp_path):
    tolerance = 2e-3 if "bf16" in options else 1e-5
    found = on_gloo(train, RANKS, "bsp", str(tmp_path), options)
    assert_same(found, on_gloo(train, RANKS, None, str(tmp_path), options), tolerance)


class Scaled(Trainer):
    """Accelerate uses no GradScaler on the CPU; this one does as on a GPU."""

    init_scale = 2.0**8

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale, growth_interval=3)
        self.accelerator.native_amp = True


class Overflowing(Scaled):
    init_scale = 2.0**40


def test_half_precision_skips_on_all_ranks(tmp_path):
    full = on_gloo(train, RANKS, "bsp", str(tmp_path), {"optim": "sgd"})
    on_cpu = on_gloo(train, RANKS, "bsp", str(tmp_path), {"optim": "sgd", "fp16": True})
    assert_same(on_cpu, full, 0.0)  # Accelerate has no half precision there, and says nothing
    scaled = {"optim": "sgd", "fp16": True, "kind": Scaled}
    assert_same(on_gloo(train, RANKS, "bsp", str(tmp_path), scaled), full, 1e-3)
    start = values(make_model())
    for steps, counts, _ in on_gloo(train, RANKS, "bsp", str(tmp_path), {**scaled, "kind": Overflowing}):
        np.testing.assert_array_equal(steps[0], start)
        assert counts["steps"] == STEPS


@pytest.mark.parametrize("algorithm", ["ssp", "d_psgd", LOCAL_SGD, TOP_K])
def test_algorithms_train(algorithm, tmp_path):
    found = on_gloo(train, RANKS, algorithm, str(tmp_path))
    for steps, counts, logs in found:
        np.testing.assert_allclose(steps[-1], found[0][0][-1], rtol=1e-6, atol=1e-6)
        losses = [entry["loss"] for entry in logs if "loss" in entry]
        assert losses[-1] < losses[0]
        assert logs[-1]["relaxcomm_bytes_sent"] == counts["bytes_sent"] > 0
    apart = not np.array_equal(found[0][0][0], found[1][0][0])
    assert apart == (algorithm is not TOP_K)


def evaluated(world, folder):
    with launched(world):
        trainer = make_trainer(
            LOCAL_SGD, folder, eval_strategy="steps", eval_steps=3, include_for_metrics=["loss"]
        )
        seen = []

        def keep(*args, **options):
            seen.append((values(trainer.model), history(trainer)[-1] if history(trainer) else None))
            return original(*args, **options)

        original = trainer.prediction_step
        with mock.patch.object(trainer, "prediction_step", keep):
            trainer.train()
        losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        return seen, losses, trainer.engine.snapshot().evaluations


def test_the_mean_model_is_evaluated(tmp_path):
    found = on_gloo(evaluated, RANKS, str(tmp_path))
    mean = np.mean([seen[0][1] for seen, _, _ in found], axis=0)
    assert not np.allclose(found[0][0][0][1], mean, rtol=1e-6, atol=1e-6)  # in the middle of a local phase
    for seen, losses, evaluations in found:
        np.testing.assert_allclose(seen[0][0], mean, rtol=1e-6, atol=1e-6)
        assert len(losses) == 2
        assert losses == found[0][1]
        assert evaluations["eval_loss"] == losses[-1]


def resumed(world, algorithm, folder, resume, stop):
    """Train with a checkpoint after `stop` steps, or go on from it."""
    with launched(world):
        model = make_model(dropout=0.1)
        if resume:
            torch.nn.init.normal_(model.transformer.wte.weight)  # the checkpoint says what it was
        trainer = make_trainer(algorithm, folder, model=model, save_strategy="steps", save_steps=stop)
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{stop}" if resume else None)
        return [*history(trainer), values(trainer.model)]


@pytest.mark.parametrize("algorithm", [LOCAL_SGD, TOP_K, "ssp"], ids=["local_sgd", "top_k", "ssp"])
def test_a_checkpoint_resumes_bit_for_bit(algorithm, tmp_path):
    stop = 3
    whole = on_gloo(resumed, RANKS, algorithm, str(tmp_path), False, stop)
    saved = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    rest = on_gloo(resumed, RANKS, algorithm, str(tmp_path), True, stop)
    for ours, theirs in zip(rest, whole, strict=True):
        if algorithm == "ssp":  # who reads what when is a matter of time
            np.testing.assert_allclose(ours[-1], rest[0][-1], rtol=1e-6, atol=1e-6)
            continue
        assert len(ours) == len(theirs) - stop
        for one, other in zip(ours, theirs[stop:], strict=True):
            np.testing.assert_array_equal(one, other)
    if algorithm is LOCAL_SGD:
        mean = np.mean([steps[stop - 1] for steps in whole], axis=0)
        model = make_model()
        model.load_state_dict(saved, strict=False)  # the head is tied
        model.tie_weights()
        np.testing.assert_allclose(values(model), mean, rtol=1e-6, atol=1e-6)
        assert not np.array_equal(whole[0][stop - 1], whole[1][stop - 1])


def best(world, folder):
    """The loss on held-out data grows again: this stops the run and brings the best model back."""
    with launched(world):
        stopping = transformers.EarlyStoppingCallback(early_stopping_patience=2)
        trainer = make_trainer(
            LOCAL_SGD,
            folder,
            steps=40,
            learning_rate=0.05,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model="apart",
            greater_is_better=False,
            label_names=["labels"],
        )
        trainer.add_callback(stopping)
        grades = iter([3.0, 1.0, 2.0, 2.5, 9.0])
        trainer.compute_metrics = lambda predictions: {"apart": next(grades)}
        trainer.train()
        trainer.save_model(f"{folder}/end")
        return trainer.state.global_step, trainer.state.best_model_checkpoint, values(trainer.model)


def test_the_best_model_is_loaded_after_an_early_stop(tmp_path):
    found = on_gloo(best, RANKS, str(tmp_path))
    for step, place, parameters in found:
        assert step == 8
        assert Path(place).name == "checkpoint-4"
        np.testing.assert_array_equal(parameters, found[0][2])
    kept = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    end = load_file(tmp_path / "end" / "model.safetensors")
    assert kept.keys() == end.keys()
    assert all(torch.equal(kept[name], end[name]) for name in kept)


def adapted(world, algorithm, folder):
    peft = pytest.importorskip("peft")
    with launched(world):
        lora = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
        model = peft.get_peft_model(make_model(), lora)
        trainer = make_trainer(algorithm, folder, model=model, save_strategy="steps", save_steps=3)
        trainer.train()
        counts = dict(trainer.engine.statistics) if algorithm is not None else {}
        frozen = [p.detach() for p in model.parameters() if not p.requires_grad]
        return [*history(trainer), values(model)], counts, frozen


def test_adapters_alone_are_exchanged(tmp_path):
    found = on_gloo(adapted, RANKS, "bsp", str(tmp_path / "bsp"))
    assert_same(found, on_gloo(adapted, RANKS, None, str(tmp_path / "ddp")))
    start = dict(make_model().named_parameters())
    for rank, (steps, counts, frozen) in enumerate(found):
        assert sum(p.numel() for p in frozen) == sum(p.numel() for p in start.values())
        if rank:  # the first one has sent the whole model once
            assert counts["bytes_sent"] < 3 * STEPS * 4 * len(steps[0])
    assert (tmp_path / "bsp" / "checkpoint-3" / "adapter_model.safetensors").is_file()


class Weighted(transformers.Seq2SeqTrainer):
    """As users write their own."""

    def compute_loss(self, model, inputs, return_outputs=False, **options):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        return (2 * loss, outputs) if return_outputs else 2 * loss


class Mixed(Trainer, Weighted):
    pass


def subclassed(world, algorithm, folder):
    with launched(world):
        arguments = transformers.Seq2SeqTrainingArguments(
            output_dir=folder, max_steps=STEPS, use_cpu=True, report_to="none", disable_tqdm=True, optim="sgd"
        )
        kind, ours = (Weighted, {}) if algorithm is None else (Mixed, {"relaxcomm": settings(algorithm)})
        trainer = kind(
            make_model(), arguments, train_dataset=make_data(200), callbacks=[watch := Watch()], **ours
        )
        trainer.train()
        trainer.train()
        return [*watch.seen, values(trainer.model)], None, None


def test_any_trainer_can_be_mixed_with_and_train_twice(tmp_path):
    found = on_gloo(subclassed, RANKS, "bsp", str(tmp_path))
    assert_same(found, on_gloo(subclassed, RANKS, None, str(tmp_path)))
    assert len(found[0][0]) == 2 * STEPS + 1


def refusal(world, provoke, folder):
    model = make_model()
    with launched(world), pytest.raises(Exception) as caught:  # noqa: PT011  # which one the test looks at
        provoke(folder, model)
    left = len(model._forward_pre_hooks) + len(model._forward_hooks)
    return type(caught.value).__name__, str(caught.value), left


def bucket_size(folder, model):
    make_trainer("bsp", folder, model=model, ddp_bucket_cap_mb=1)


def clients(folder, model):
    make_trainer({"name": "fedavg", "epochs": 1}, folder, model=model).train()


def unknown_name(folder, model):
    make_trainer("local_sdg", folder, model=model).train()


def saved_without(folder, model):
    make_trainer(None, folder, save_strategy="steps", save_steps=2, steps=2).train()
    trainer = make_trainer("bsp", folder, model=model)
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2")


class Failing(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **facts):
        if state.global_step == 2:
            raise ValueError("the user's own")


def users_own(folder, model):
    trainer = make_trainer("bsp", folder, model=model)
    trainer.add_callback(Failing())
    trainer.train()


@pytest.mark.parametrize(
    ("provoke", "kind", "words"),
    [
        (bucket_size, "UsageError", "ddp_bucket_cap_mb would have no effect"),
        (clients, "UsageError", "fedavg chooses the batches"),
        (unknown_name, "ConfigError", "local_sgd"),
        (saved_without, "ConfigError", "saved without relaxcomm"),
        (users_own, "ValueError", "the user's own"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(provoke, kind, words, tmp_path):
    for found, text, left in on_gloo(refusal, RANKS, provoke, str(tmp_path)):
        assert (found, left) == (kind, 0), text
        assert words in text


def test_state_of_the_trainer_is_its_own(tmp_path):
    on_gloo(resumed, RANKS, LOCAL_SGD, str(tmp_path), False, 3)
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert [one["step"] for one in state["log_history"]] == [1, 2, 3, 4, 5, 6]
    kept = [path.name for path in (tmp_path / "checkpoint-6" / "relaxcomm").iterdir()]
    assert kept == ["step-00000006"]

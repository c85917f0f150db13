"""Rules composed by hand against references of N simulated workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import references
from tests.engine.harness import World, assert_histories_agree, simulated_workers, train, values
from tests.models import CASES, make_optimizer, trainable

STEPS = 32
GRADIENTS = {"payload": "gradients", "exchange": "all_reduce"}
PARAMETERS = {"payload": "parameters", "exchange": "all_reduce"}


def deltas(period, outer="average", merge=None, **options):
    payload = "deltas" if merge is None else {"deltas": {"merge": merge}}
    return {
        "trigger": {"every": {"steps": period}},
        "payload": payload,
        "exchange": "all_reduce",
        "outer": outer,
    } | options


NESTEROV = {"nesterov": {"lr": 0.6, "momentum": 0.8}}
COMPOSITIONS = {
    "gradients_delay_1": ([GRADIENTS | {"delay": 1}], references.delayed_gradients, (1,)),
    "gradients_delay_2": ([GRADIENTS | {"delay": 2}], references.delayed_gradients, (2,)),
    "parameters_every_4_delay_2": (
        [PARAMETERS | {"trigger": {"every": {"steps": 4}}, "delay": 2}],
        references.late_average,
        (4, 2),
    ),
    "parameters_delay_equals_period": (
        [PARAMETERS | {"trigger": {"every": {"steps": 3}}, "delay": 3}],
        references.late_average,
        (3, 3),
    ),
    "deltas_average": ([deltas(5)], references.late_average, (5, 0)),
    "deltas_sgd": ([deltas(5, {"sgd": {"lr": 0.4}})], references.diloco, (5, 0.4, 0.0)),
    "deltas_merge": ([deltas(4, NESTEROV, merge=0.25)], references.merged_nesterov, (4, 0.6, 0.8, 0.25)),
    "deltas_merge_delay_2": (
        [deltas(6, NESTEROV, merge=0.5, delay=2)],
        references.late_nesterov,
        (6, 2, 0.6, 0.8, 0.5),
    ),
    "gradients_and_deltas": (
        [GRADIENTS, deltas(8, NESTEROV)],
        references.gradients_and_deltas,
        (8, 0.6, 0.8),
    ),
    "phases": (
        [
            GRADIENTS | {"active": [0, 10]},
            PARAMETERS | {"trigger": {"every": {"steps": 3}}, "active": [10, 22]},
            GRADIENTS | {"active": [22, None]},
        ],
        references.phases,
        (10, 3, 22),
    ),
    "selected_parts": (
        [GRADIENTS | {"select": ["0.*", "4.bias"]}, GRADIENTS | {"select": ["2.*", "4.weight"]}],
        references.bsp,
        (),
    ),
}


@pytest.mark.every_other("network", "name", "optimizer", of=3)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_composition_equals_its_reference_after_every_step(network, name, optimizer):
    rules, reference, arguments = COMPOSITIONS[name]
    results = network(train, 3, {"algorithm": {"rules": rules}}, STEPS, optimizer)
    assert_histories_agree(results, reference(simulated_workers(3, optimizer), STEPS, *arguments))


def cast_gradients(world: World, dtype: str, selected: list[str] | None):
    """One backward of a float32 model: the gradients, each rank's own, and the bytes of the step."""
    case = CASES["mlp"]
    model = case.model(seed=0)
    own = [
        torch.autograd.grad(case.local_loss(model, 0, rank), list(model.parameters()))
        for rank in range(world.size)
    ]
    rule = GRADIENTS | {"compressor": {"cast": {"dtype": dtype}}}
    rules = [rule]
    if selected is not None:
        others = [name for name, _ in model.named_parameters() if name not in selected]
        rules = [rule | {"select": selected}, GRADIENTS | {"select": others}]
    optimizer = make_optimizer("plain", model)
    with world.attach(model, optimizer, {"algorithm": {"rules": rules}}) as engine:
        before = engine.statistics["bytes_sent"], engine.statistics["bytes_uncompressed"]
        case.local_loss(model, 0, world.rank).backward()
        grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        optimizer.step()  # closes the step: the uncompressed bytes are counted a step
        after = engine.statistics["bytes_sent"], engine.statistics["bytes_uncompressed"]
    return grads, list(zip(*own, strict=True)), after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("selected", [None, ["0.weight", "2.bias"]])
def test_cast_on_two_ranks_is_the_halved_sum_of_the_cast_gradients(network, dtype, selected):
    low = getattr(torch, dtype)
    results = network(cast_gradients, 2, dtype, selected)
    for grads, own, _, _ in results:
        for (name, grad), (first, second) in zip(grads.items(), own, strict=True):
            assert grad.dtype == torch.float32
            cast = selected is None or name in selected
            expected = ((first.to(low) + second.to(low)) / 2).float() if cast else (first + second) / 2
            torch.testing.assert_close(
                grad, expected, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cast_on_three_ranks_stays_within_its_rounding_and_halves_the_bytes(network, dtype):
    eps = torch.finfo(getattr(torch, dtype)).eps
    for grads, own, sent, uncompressed in network(cast_gradients, 3, dtype, None):
        for grad, locals_ in zip(grads.values(), own, strict=True):
            mean = torch.stack(locals_).mean(0)
            scale = torch.stack(locals_).abs().sum(0)  # each of the three casts and two sums rounds once
            assert ((grad - mean).abs() <= 2 * eps * scale + 1e-7).all()
            assert not torch.equal(grad, mean)
        assert 0.49 < sent / uncompressed < 0.56


def cast_parameters(world: World):
    model, optimizer = trainable("mlp", "plain", seed=world.rank)
    rule = deltas(2, {"sgd": {"lr": 1.0}}, compressor={"cast": {"dtype": "bfloat16"}})
    with world.attach(model, optimizer, {"algorithm": {"rules": [rule]}}) as engine:
        start = values(model)
        for step in range(2):
            CASES["mlp"].local_loss(model, step, world.rank).backward()
            if step == 1:  # what this rank will have after its own update, from the optimizer's rule
                own = values(model) - 0.1 * np.concatenate(
                    [p.grad.double().reshape(-1).numpy() for p in model.parameters()]
                )
            optimizer.step()
            optimizer.zero_grad()
        end = values(model)
        engine.close(average=False)
    return start, own, end


def test_cast_deltas_round_the_progress_and_not_the_parameters(network):
    results = network(cast_parameters, 3)
    start = results[0][0]
    mean = np.mean([own for _, own, _ in results], axis=0)
    progress = np.abs([own - start for _, own, _ in results]).sum(axis=0)
    for rank_start, _, end in results:
        np.testing.assert_array_equal(rank_start, start)
        np.testing.assert_array_equal(end, results[0][2])
        assert (np.abs(end - mean) <= 2 * 2**-7 * progress + 1e-6).all()
        assert np.abs(end - mean).max() > 1e-6

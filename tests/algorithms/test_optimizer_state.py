"""Moments that are averaged: DES-LOC, local SGD with moments, and what optimizers cannot have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import Algorithm, CompositionError, Rule, UsageError
from relaxcomm.plugin import Bucket, Context, Item, Membership
from relaxcomm.primitives import (
    all_reduce,
    clip_norm,
    every,
    gossip,
    gradients,
    momentum,
    nesterov,
    optimizer_state,
    parameters,
    server,
)
from relaxcomm.replica.replica import Replica
from relaxcomm_algorithms.selsync import selsync
from tests import references
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import (
    assert_histories_agree,
    in_process,
    simulated_workers,
    train,
)
from tests.models import take_step

STEPS = 26
DES_LOC = {"algorithm": {"name": "des_loc", "steps": 2}, "bucket_bytes": 1200}
MOMENTS = {"exp_avg": 6, "exp_avg_sq": 12}


@pytest.mark.parametrize("size", [3, 5])
def test_des_loc_equals_its_reference(size):
    assert len(in_process(bucket_places, size, {**DES_LOC, "algorithm": "bsp"})[0]) == 2
    expected = references.with_moments(simulated_workers(size, "adamw"), STEPS, 2, MOMENTS)
    assert_histories_agree(in_process(train, size, DES_LOC, STEPS, "adamw"), expected)
    alone = references.local_sgd(simulated_workers(size, "adamw"), STEPS, 2)
    assert np.abs(expected[-1] - alone[-1]).max() > 1e-5  # the moments are seen


@pytest.mark.parametrize(("optimizer", "slots"), [("momentum", ["momentum_buffer"]), ("adamw", [*MOMENTS])])
def test_local_sgd_with_moments_equals_its_reference(optimizer, slots):
    config = {"algorithm": {"name": "local_sgd", "steps": 3, "moments": slots}, "bucket_bytes": 1200}
    expected = references.with_moments(simulated_workers(3, optimizer), STEPS, 3, dict.fromkeys(slots, 3))
    assert_histories_agree(in_process(train, 3, config, STEPS, optimizer), expected)


AVERAGES = {
    "diloco": ({"steps": 3, "lr": 1.0, "momentum": 0.0}, 3),
    "slowmo": ({"steps": 3, "lr": 1.0, "momentum": 0.0}, 3),
    "selsync": ({"threshold": 0.0}, 1),
}
"""Algorithms with which they are local SGD, and its period."""


@pytest.mark.parametrize("name", AVERAGES)
def test_moments_are_averaged_with_what_is_averaged(name):
    parameters, period = AVERAGES[name]
    config = {"algorithm": {"name": name, **parameters, "moments": [*MOMENTS]}, "bucket_bytes": 1200}
    expected = references.with_moments(
        simulated_workers(3, "adamw"), STEPS, period, dict.fromkeys(MOMENTS, period)
    )
    assert_histories_agree(in_process(train, 3, config, STEPS, "adamw"), expected)


def momenta(world, algorithm, topology):
    """Of a worker whose share of the data is its own, after four steps."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    config = {"algorithm": algorithm, "topology": topology}
    with world.attach(model, optimizer, config) as engine:
        data = torch.utils.data.TensorDataset(torch.arange(256.0).view(64, 4) / 256)
        for _, (inputs,) in zip(range(4), engine.loader(data, batch_size=2), strict=False):
            take_step(model(inputs).square().mean(), optimizer)
        engine.close(average=False)
    return torch.cat([optimizer.state[p]["momentum_buffer"].flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        ({"name": "post_local_sgd", "steps": 2, "after_steps": 2}, "complete"),
        ({"name": "hierarchical_local_sgd", "steps": 2}, {"hierarchical": {"sizes": [2, 2]}}),
        ({"name": "adaptive_local_sgd", "steps": 2, "max_batch_size": 4}, "complete"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) and "name" in value else "",
)
def test_momenta_are_one_after_an_average(algorithm, topology):
    averaged = in_process(momenta, 4, {**algorithm, "moments": "momentum_buffer"}, topology)
    assert all(torch.equal(one, averaged[0]) for one in averaged)
    own = in_process(momenta, 4, algorithm, topology)
    assert not torch.equal(own[0], own[-1])


def test_moments_of_workers_that_average_gradients_are_refused():
    with pytest.raises(CompositionError, match="use aggregate='parameters', or no moments"):
        selsync(aggregate="gradients", moments=("momentum_buffer",))


def mixed(group, optimizers, slots):
    """What two optimizers of a model hold under the first of some names, after a step that exchanges it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    made = optimizers(model)
    rules = Rule(payload=gradients(), exchange=all_reduce()), Rule(payload=slots, exchange=all_reduce())
    with relaxcomm.attach(model, made, {"algorithm": Algorithm(rules)}, process_group=group):
        inputs = torch.full((3, 4), 1.0 + group.rank())
        model(inputs).square().mean().backward()
        for one in made:
            one.step()
            one.zero_grad()
    return [
        next(one.state[p][s] for s in slots.slots if s in one.state[p])
        for one in made
        for p in model.parameters()
        if p in one.state
    ]


def muon_and_adamw(model):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    return [
        torch.optim.Muon(matrices, lr=0.02),
        torch.optim.AdamW([p for p in model.parameters() if p.ndim == 1]),
    ]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon is in torch from 2.9 on")
def test_each_parameter_takes_the_name_that_its_optimizer_has():
    slots = optimizer_state(slots=["exp_avg", "momentum_buffer"])
    held = relaxcomm.simulate(lambda group: mixed(group, muon_and_adamw, slots), 3)
    assert len(held[0]) == 4
    for mine in held[1:]:
        for one, other in zip(mine, held[0], strict=True):
            torch.testing.assert_close(one, other)


def float32_moments(model):
    """Adam, which keeps the moments of a bfloat16 model in float32 here."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for p in model.parameters():
        moment = torch.full_like(p, 1.0, dtype=torch.float32)
        optimizer.state[p] = {"step": torch.tensor(1.0), "exp_avg": moment, "exp_avg_sq": moment.clone()}
    return optimizer


def kept_in_float32(group):
    """A mean that bfloat16 could not hold, of moments that no step has changed since."""
    model = nn.Linear(4, 3).bfloat16()
    optimizer = float32_moments(model)
    for p in model.parameters():
        optimizer.state[p]["exp_avg"] += group.rank() * 2.0**-12
    optimizer.step = lambda closure=None: None
    payload = optimizer_state(slots="exp_avg")
    rule = Rule(payload=payload, exchange=all_reduce())
    replica = Replica(model, [optimizer], None, 1 << 20)
    bucket = Bucket(0, [Item(n, p) for n, p in model.named_parameters()])
    cx = Context(0, 0, Membership(group.rank(), 2), lambda one: 0.1, optimizer_state=replica.optimizer_state)
    flat = rule.payload.read(cx, bucket, {}, bucket.empty())
    rule.payload.write(cx, bucket, {}, flat * 2, None)
    return flat, [optimizer.state[p]["exp_avg"] for p in model.parameters()]


def test_moments_of_a_bfloat16_model_travel_in_float32():
    flat, moments = relaxcomm.simulate(kept_in_float32, 2)[1]
    assert flat.dtype == torch.float32
    assert set(flat.tolist()) == {1 + 2.0**-12}
    assert all(set(one.flatten().tolist()) == {2 + 2.0**-11} for one in moments)


def test_an_optimizer_without_it_is_refused():
    config = {"algorithm": {"name": "des_loc", "steps": 2}}
    with pytest.raises(CompositionError, match="no betas; use such as AdamW"):
        in_process(train, 2, config, 1, "momentum")
    config = {"algorithm": {"name": "local_sgd", "steps": 1, "moments": ["momentum_buffer"]}}
    with pytest.raises(CompositionError, match="group 0 does not keep, as it has no momentum"):
        in_process(train, 2, config, 1, "plain")
    config = {"algorithm": {"name": "local_sgd", "steps": 1, "moments": ["row_var"]}}
    with pytest.raises(UsageError, match=r"AdamW keeps no 'row_var' of .*; it keeps 'step', "):
        in_process(train, 2, config, 1, "adamw")
    config = {"algorithm": {"name": "local_sgd", "steps": 1, "moments": ["step"]}}
    with pytest.raises(UsageError, match="shape"):
        in_process(train, 2, config, 1, "adamw")


def overflowing(group, algorithm, overflows):
    """What a worker holds after steps whose gradients, which stay in `.grad`, overflow on rank 1 in some."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    config = {"algorithm": algorithm, "bucket_bytes": 100}
    with relaxcomm.attach(model, optimizer, config, process_group=group, scaler=scaler):
        for step in range(4):
            loss = model(torch.full((3, 4), 1.0 + group.rank())).square().mean()
            optimizer.zero_grad()  # only here: the exchange of a skipped step sees its gradients
            scaler.scale(loss * (float("inf") if group.rank() == 1 and step in overflows else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    ("algorithm", "overflows"),
    [({"name": "selsync", "threshold": 0.0}, (0,)), ({"name": "local_sgd", "steps": 2}, (0, 1))],
    ids=["at once", "until the first exchange"],
)
def test_a_worker_whose_first_steps_overflow_has_no_moments_yet(algorithm, overflows):
    config = {**algorithm, "moments": ["momentum_buffer"]}
    held = relaxcomm.simulate(lambda group: overflowing(group, config, overflows), 3)
    assert all(torch.equal(one, held[0]) and one.isfinite().all() for one in held)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"exchange": all_reduce(), "trigger": every(steps=4), "delay": 1}, "no part of them; use delay 0"),
        ({"exchange": server(staleness=1)}, "deltas"),
        ({"exchange": all_reduce(), "outer": nesterov(lr=0.7, momentum=0.9)}, "does not keep"),
        ({"exchange": all_reduce(), "compressor": clip_norm(max_norm=1.0)}, "points"),
    ],
)
def test_what_cannot_be_is_refused(more, reason):
    with pytest.raises(relaxcomm.RelaxcommError, match=reason):
        Rule(payload=optimizer_state(slots="exp_avg"), **more)


def test_moments_alone_are_no_exchange_of_the_model():
    kept = Rule(payload=optimizer_state(slots="exp_avg"), exchange=all_reduce())
    with pytest.raises(CompositionError, match="would drift apart; add a rule of parameters"):
        Algorithm((kept,))
    apart = Algorithm((Rule(payload=gradients(), exchange=all_reduce(), select="0.*"), kept))
    with pytest.raises(CompositionError, match=r"no rule selects the parameter '[24]"):
        in_process(train, 2, {"algorithm": apart}, 1, "adamw")


def test_gradients_beside_them_still_keep_replicas_equal():
    kept = Rule(payload=optimizer_state(slots="exp_avg"), exchange=all_reduce())
    assert not Algorithm((Rule(payload=gradients(), exchange=all_reduce()), kept)).lets_replicas_differ
    assert Algorithm((Rule(payload=parameters(), exchange=all_reduce()), kept)).lets_replicas_differ
    with pytest.warns(relaxcomm.CompositionWarning, match="replicas part for good"):
        Algorithm((Rule(payload=momentum(), exchange=gossip()), kept))


class Keeping(torch.optim.Optimizer):
    """Keeps what its parameters' type is too short for."""

    def __init__(self, parameters, rank) -> None:
        super().__init__(parameters, {})
        self.kept = 1.0 + (1 + rank) * 2.0**-12 * torch.arange(40)

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = self.kept.clone()


ALL = {"error_feedback": {"compressor": {"chunk_top_k": {"num_kept": 4, "chunk_size": 4}}}}
WAYS = {
    "whole": ("all_gather", ALL),
    "parts": ("scatter_gather", ALL),
    "parts and mean": ({"scatter_gather": {"server_feedback": True}}, ALL),
    "server": ("averaging_server", ALL),
    "server, uncoded": ("averaging_server", "identity"),
}


@pytest.mark.parametrize(("exchange", "coder"), WAYS.values(), ids=WAYS)
def test_moments_of_a_short_type_are_exchanged_in_float32(exchange, coder):
    def rank(group):
        pair = nn.ParameterList([nn.Parameter(torch.zeros(40, dtype=torch.bfloat16)) for _ in range(2)])
        optimizer = Keeping(pair.parameters(), group.rank())
        moments = {"payload": {"optimizer_state": {"slots": "kept"}}, "compressor": coder}
        rules = [{**one, "exchange": exchange} for one in ({"payload": "parameters"}, moments)]
        config = {"algorithm": {"rules": rules}, "bucket_bytes": 80}
        with relaxcomm.attach(pair, optimizer, config, process_group=group):
            sum(one.sum() for one in pair).backward()
            optimizer.step()
        return [optimizer.state[one]["kept"] for one in pair]

    for kept in relaxcomm.simulate(rank, 3):
        for one in kept:
            torch.testing.assert_close(one, 1.0 + 2.0**-11 * torch.arange(40), rtol=0, atol=1e-6)

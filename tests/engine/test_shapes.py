"""Models, outputs and loops of many shapes train as by hand, under what keeps state or comes late as well."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint

import relaxcomm
from relaxcomm import UsageError
from tests.engine.by_hand import ALGORITHMS, Shape, assert_by_hand
from tests.engine.harness import World, in_process, values
from tests.engine.situations import Checkpointed
from tests.models import CASES, make_convnet, make_toy, take_step

CASE = CASES["toy"]


def error(model, step, rank, call=None):
    inputs, targets = CASE.data(step, rank)
    return nn.functional.mse_loss((call or model)(inputs), targets)


def plain(model, step, rank, engine):
    error(model, step, rank).backward()


def in_one_checkpoint(model, step, rank, engine):
    """The whole model is called again inside backward, twice."""

    def call(inputs):
        return checkpoint(model, inputs, use_reentrant=False)

    (error(model, step, rank, call) + error(model, step + 50, rank, call)).backward()


def functional(model, step, rank, engine):
    parameters = dict(model.named_parameters())
    error(model, step, rank, lambda inputs: functional_call(model, parameters, inputs)).backward()


def per_sample(model, step, rank, engine):
    """Gradients of each sample on the side, for their noise."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def one(parameters, x, y):
        return nn.functional.mse_loss(functional_call(model, parameters, x[None]), y[None])

    found = vmap(grad(one), in_dims=(None, 0, 0))(parameters, *CASE.data(step, rank))
    scale = sum(each.square().mean() for each in found.values()).item()
    (error(model, step, rank) / (1 + scale)).backward()


def inference(model, step, rank, engine):
    with torch.inference_mode(), engine.averaged():
        error(model, 70, rank)
    error(model, step, rank).backward()
    with torch.inference_mode():
        error(model, 71, rank)


def grad_modes(model, step, rank, engine):
    loss = error(model, step, rank)
    with torch.no_grad() if step % 2 else torch.enable_grad():
        loss.backward()


def replaced_data(model, step, rank, engine):
    if step == 2:
        for p in model.parameters():
            p.data = p.data.clone()
    plain(model, step, rank, engine)


def images(model, step, rank, engine):
    CASES["convnet"].local_loss(model, step, rank).backward()
    if step == 2 and isinstance(engine, relaxcomm.Engine):  # torch moves gradients, too, that are there
        model.to(memory_format=torch.channels_last)


def moved_gradients(model, step, rank, engine):
    plain(model, step, rank, engine)
    for p in model.parameters() if step == 2 else ():
        p.grad.data = p.grad.data.clone()


def parametrized():
    model = make_toy()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[2])
    parametrizations.orthogonal(model[4])
    return model


class Held(nn.Module):
    """Parameters in a list, in a dictionary, and on the model itself; frozen bytes, and odd buffers."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList([torch.randn(6, 5).double() / 3, torch.randn(5, 4).double() / 3])
        self.vectors = nn.ParameterDict({"bias": torch.zeros(4).double()})
        self.scale = nn.Parameter(torch.ones(()).double())
        self.codes = nn.Parameter(torch.arange(5, dtype=torch.uint8), requires_grad=False)
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("phase", torch.zeros(3, dtype=torch.complex64))

    def forward(self, x):
        return self.scale * (torch.tanh(x @ self.matrices[0]) @ self.matrices[1] + self.vectors["bias"])


class Recurrent(nn.Module):
    """Weights that cuDNN would flatten."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True, bias=False)
        self.head = nn.Linear(10, 4)
        self.double()

    def forward(self, x):
        self.rnn.flatten_parameters()
        return self.head(self.rnn(x[:, None])[0][:, 0])


def test_a_block_that_is_checkpointed_more_often_than_at_first_is_named():
    """Its gradient comes again when it was sent."""
    model = Checkpointed(reentrant=True, times=1)
    with relaxcomm.attach(model, None, {"algorithm": "bsp", "bucket_bytes": 64}):
        error(model, 0, 0).backward()
        model.times = 3
        with pytest.raises(UsageError, match=r"block\.\d\.\w+ got another gradient.*use_reentrant=False"):
            error(model, 1, 0).backward()


@dataclass
class Output:
    loss: torch.Tensor
    logits: Any = None


class OwnLoss(nn.Module):
    """Computes its loss, and returns it in an object, or nothing at all, or after its own backward."""

    def __init__(self, returns):
        super().__init__()
        self.body, self.returns, self.kept = make_toy(), returns, None

    def forward(self, x, y):
        loss = nn.functional.mse_loss(self.body(x), y)
        if self.returns == "object":
            return Output(loss)
        if self.returns == "backward":
            loss.backward()
            return loss.item()
        self.kept = loss
        return None


def own_loss(model, step, rank, engine):
    found = model(*CASE.data(step, rank))
    if model.returns == "object":
        found.loss.backward()
    elif model.returns == "nothing":
        model.kept.backward()


class Returning(nn.Module):
    """Returns its parameters, as prompts and scales are, with what it has made or alone."""

    def __init__(self, alone=True):
        super().__init__()
        self.body = nn.Linear(6, 4).double()
        self.scale = nn.Parameter(torch.ones(4).double())
        self.alone = alone

    def forward(self, x):
        return (*self.body.parameters(), self.scale) if self.alone else (self.body(x), self.scale)


def with_its_parameters(model, step, rank, engine):
    x, y = CASE.data(step, rank)
    found = model(x)
    made = nn.functional.linear(x, *found[:2]) if model.alone else found[0]
    nn.functional.mse_loss(made * found[-1], y).backward()


SHAPES = {
    "one checkpoint": (make_toy, in_one_checkpoint),
    "functional_call": (make_toy, functional),
    "vmap beside it": (make_toy, per_sample),
    "inference_mode": (make_toy, inference),
    "grad modes": (make_toy, grad_modes),
    "p.data = ...": (make_toy, replaced_data),
    "channels_last": (make_convnet, images),
    "p.grad.data = ...": (make_toy, moved_gradients),
    "parametrizations": (parametrized, plain),
    "lists and dictionaries": (Held, plain),
    "LSTM": (Recurrent, plain),
    "its parameters returned": (Returning, with_its_parameters),
    "one of them returned": (lambda: Returning(alone=False), with_its_parameters),
    "a loss in an object": (lambda: OwnLoss("object"), own_loss),
    "a loss in an attribute": (lambda: OwnLoss("nothing"), own_loss),
    "backward in forward": (lambda: OwnLoss("backward"), own_loss),
}


def momentum(model):
    return [torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)]


def loop_of(backward):
    def loop(model, optimizers, step, rank, engine):
        backward(model, step, rank, engine)
        yield
        with torch.no_grad() if step % 2 else torch.enable_grad():
            optimizers[0].step()
        optimizers[0].zero_grad()

    return loop


@pytest.mark.every_other("name", "algorithm", of=4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", SHAPES)
def test_it_trains_as_by_hand(name, algorithm):
    make, backward = SHAPES[name]
    tolerance = 1e-5 if make is make_convnet else 1e-9  # the one of float32
    assert_by_hand(Shape(make, momentum, loop_of(backward)), algorithm, tolerance)


@pytest.mark.parametrize("alone", [True, False])
def test_a_returned_parameter_keeps_no_hooks(alone):
    model = Returning(alone)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, "bsp"):
        for step in range(3):
            with_its_parameters(model, step, 0, None)
            optimizer.step()
            assert len(model.scale._backward_hooks) == 1
    assert not model.scale._backward_hooks


@pytest.mark.parametrize(
    "conversion",
    [
        lambda model: model.half(),
        lambda model: model.to(torch.bfloat16),
        lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
    ],
    ids=["half", "bfloat16", "assigned"],
)
@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd"])
def test_other_parameters_after_attach_are_named(algorithm, conversion):
    model = make_toy()
    optimizer = momentum(model)[0]
    config = {"algorithm": {"name": "local_sgd", "steps": 1} if algorithm == "local_sgd" else algorithm}
    with relaxcomm.attach(model, optimizer, config):
        error(model, 0, 0).backward()
        optimizer.step()
        conversion(model)
        with pytest.raises(UsageError, match=r"4\.bias (is now torch|was replaced or removed)"):  # noqa: PT012  # in either
            model(torch.ones(2, 6, dtype=model[0].weight.dtype)).sum().backward()
            optimizer.step()


class Teaching(nn.Module):
    """A model that keeps an average of itself: frozen parameters, or buffers."""

    def __init__(self, keeps):
        super().__init__()
        self.student = make_toy()
        teacher = copy.deepcopy(self.student).requires_grad_(False)
        if keeps == "buffers":
            for module in teacher.modules():
                for name, p in list(module.named_parameters(recurse=False)):
                    delattr(module, name)
                    module.register_buffer(name, p.detach())
        self.teacher = teacher

    def forward(self, x):
        return self.student(x) + 0.1 * self.teacher(x)

    @torch.no_grad()
    def update(self):
        pairs = zip(self.teacher.state_dict().values(), self.student.state_dict().values(), strict=True)
        for kept, new in pairs:
            kept.data.mul_(0.9).add_(new, alpha=0.1)


def taught(world, keeps, algorithm):
    model = CASE.model(seed=0) if keeps is None else Shape(lambda: Teaching(keeps), momentum, plain).model(0)
    optimizer = momentum(model)[0]
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(5):
            take_step(error(model, step, world.rank), optimizer)
            if keeps:
                model.update()
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).numpy()


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 2}, "d_psgd"])
@pytest.mark.parametrize("keeps", ["frozen", "buffers", None])
def test_a_models_own_average_is_a_buffer_or_is_told_to_differ(keeps, algorithm, caplog):
    first, *others = in_process(taught, 3, keeps, algorithm)
    parts = keeps == "frozen" and algorithm != "bsp"
    assert all(np.allclose(first, other, atol=1e-12) for other in others) != parts
    told = [
        record.message for record in caplog.records if "ranks end with different values of" in record.message
    ]
    assert [" teacher.0.weight and 5 more:" in text for text in told] == [True] * parts


def averaged_aside(world, algorithm):
    """An EMA of the model, a schedule for it, and its own statistics, as torch's documentation has them."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).double()
    optimizer = momentum(model)[0]
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        ema = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
        schedule = swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)
        for step in range(6):
            take_step(error(model, step, world.rank), optimizer)
            with engine.averaged():
                ema.update_parameters(model)
            schedule.step()
        swa_utils.update_bn([CASE.data(0, 0)], ema)
        steps = engine.statistics["steps"]
        assert steps == 6
    return values(ema.module)


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 3}])
def test_an_average_that_is_updated_inside_averaged_is_the_same_everywhere(algorithm):
    first, *others = in_process(averaged_aside, 3, algorithm)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-12, atol=1e-12)


def test_the_average_itself_is_not_what_is_trained():
    model = make_toy()
    with pytest.raises(relaxcomm.CompositionError, match="are not in the model"):
        relaxcomm.attach(swa_utils.AveragedModel(model), momentum(model), "local_sgd")


class Tempered(nn.Module):
    """With a learned temperature, a parameter of no dimensions."""

    def __init__(self):
        super().__init__()
        self.layer, self.temperature = nn.Linear(6, 4), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.layer(x) * self.temperature


def tempered(world: World, algorithm, batches=6):
    torch.manual_seed(0)
    model = Tempered()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 64}):
        for step in range(batches):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + world.rank)
            model(torch.randn(4, 6, generator=generator)).square().mean().backward()
            optimizer.step()
    return values(model)


@pytest.mark.parametrize(
    "algorithm",
    [
        *("auto", "bytegrad", "qsgd", "terngrad", "signsgd", "ssp", "async_model_average", "ad_psgd"),
        {"name": "qadam", "warmup_steps": 2},
        {"name": "heloco", "steps": 2},
        {"name": "decoupled_diloco", "steps": 2},
        {"name": "local_sgd", "steps": 2, "compressor": {"quantize": {"bits": 8}}},
    ],
    ids=str,
)
def test_a_parameter_of_no_dimensions_is_exchanged_in_parts(algorithm):
    first, *others = in_process(tempered, 3, algorithm)
    assert np.isfinite(first).all()
    for other in others:
        np.testing.assert_allclose(other, first)


def test_its_gradient_is_the_mean():
    parts = {"rules": [{"payload": "gradients", "exchange": "scatter_gather"}]}
    for found, expected in zip(in_process(tempered, 3, parts), in_process(tempered, 3, "bsp"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)

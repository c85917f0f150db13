"""Every optimizer of torch's trains as by hand; what steps otherwise is followed, or refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn, optim

import relaxcomm
from relaxcomm import Algorithm, CompositionError, Rule, UsageError
from relaxcomm.plugin import Compressor, Dense, Outer, frozen
from relaxcomm.primitives import (
    adam,
    all_reduce,
    deltas,
    gradients,
    identity,
    norm_test,
    sample_norm_test,
    sgd,
    trimmed_mean,
)
from tests.engine.by_hand import ALGORITHMS, LATE, Shape, assert_by_hand
from tests.engine.harness import World, engine_state, in_process, values
from tests.models import CASES, make_toy, take_step

with warnings.catch_warnings():  # of what torch itself uses
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import _apply_optimizer_in_backward

CASE = CASES["toy"]


def loop(model, optimizers, step, rank, engine):
    CASE.local_loss(model, step, rank).backward()
    yield
    for one in optimizers:
        one.step()
        one.zero_grad()


class OwnStep(optim.SGD):
    """Its step calls that of the class above, and torch wraps both in hooks."""

    def step(self, closure=None):
        return super().step(closure)


class Written(optim.Optimizer):
    """An optimizer of the user's."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])


def matrices(model):
    return [p for p in model.parameters() if p.ndim == 2]


def vectors(model):
    return [p for p in model.parameters() if p.ndim != 2]


SMALL = {"lr": 0.01, "eps": 1e-3}
OPTIMIZERS = {
    "SGD foreach": lambda m: [optim.SGD(m.parameters(), lr=0.05, momentum=0.9, foreach=True)],
    "SGD fused": lambda m: [optim.SGD(m.parameters(), lr=0.05, momentum=0.9, fused=True)],
    "Adam": lambda m: [optim.Adam(m.parameters(), foreach=True, **SMALL)],
    "Adam of a tensor": lambda m: [optim.Adam(m.parameters(), lr=torch.tensor(0.01), eps=1e-3)],
    "AdamW fused": lambda m: [optim.AdamW(m.parameters(), fused=True, **SMALL)],
    "Adagrad fused": lambda m: [optim.Adagrad(m.parameters(), fused=True, **SMALL)],
    "Muon": lambda m: [optim.Muon(matrices(m), lr=0.02), optim.AdamW(vectors(m), **SMALL)],
    "Adafactor": lambda m: [optim.Adafactor(m.parameters(), lr=0.01)],
    "Rprop": lambda m: [optim.Rprop(m.parameters(), lr=0.01)],
    "ASGD": lambda m: [optim.ASGD(m.parameters(), lr=0.01)],
    "NAdam": lambda m: [optim.NAdam(m.parameters(), **SMALL)],
    "RAdam": lambda m: [optim.RAdam(m.parameters(), **SMALL)],
    "Adadelta": lambda m: [optim.Adadelta(m.parameters(), lr=0.1)],
    "Adamax": lambda m: [optim.Adamax(m.parameters(), **SMALL)],
    "RMSprop": lambda m: [optim.RMSprop(m.parameters(), **SMALL)],
    "one's own": lambda m: [Written(m.parameters())],
    "a step in a step": lambda m: [OwnStep(m.parameters(), lr=0.05, momentum=0.9)],
}


@pytest.mark.every_other("name", "algorithm")
@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_by_hand(name, algorithm):
    if name == "Muon" and not hasattr(optim, name):
        pytest.skip("the oldest torch that is accepted has none")
    optim.SGD([nn.Parameter(torch.zeros(1))])  # so that torch has wrapped its step, too
    assert_by_hand(Shape(make_toy, OPTIMIZERS[name], loop), algorithm)


@pytest.mark.parametrize("algorithm", ["topk_sgd", "delayed_sgd", "late"])
@pytest.mark.parametrize("name", ["SGD fused", "AdamW fused", "a step in a step"])
def test_so_it_does_under_what_keeps_state(name, algorithm):
    assert_by_hand(Shape(make_toy, OPTIMIZERS[name], loop), algorithm)


def test_a_step_that_has_failed_hides_none_that_follow():
    model = make_toy()
    optimizer = OwnStep(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, "local_sgd") as engine:
        model[0].weight.grad = torch.zeros(11, 6).double()
        optimizer.param_groups[0]["lr"] = "fast"
        with pytest.raises(TypeError):
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1
        for _ in range(3):
            optimizer.step()
        assert engine.statistics["steps"] == 3


def scaled(world: World, algorithm, fused, scaler_enabled, several):
    """Clients of fedavg that are pulled back, whose gradients a GradScaler has multiplied or not."""
    model = CASE.model(seed=world.rank)
    parts = (
        [list(model[0].parameters()), list(model[2:].parameters())] if several else [list(model.parameters())]
    )
    optimizers = [optim.SGD(part, lr=0.05, fused=fused) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6, enabled=scaler_enabled)
    data = torch.utils.data.TensorDataset(*(t.repeat(6, 1) for t in CASE.data(0, world.rank)))
    with world.attach(model, optimizers, {"algorithm": algorithm}, scaler=scaler) as engine:
        for _ in range(2):
            for x, y in engine.loader(data, batch_size=4):
                scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
                for one in optimizers:
                    scaler.step(one)
                    one.zero_grad(set_to_none=False)
                scaler.update()
    return values(model)


@pytest.mark.parametrize("several", [False, True], ids=["one", "two"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_what_is_added_to_gradients_has_their_scale(fused, several):
    """A fused optimizer unscales in its step; of two, the second is unscaled when the first has stepped."""
    algorithm = {"name": "fedavg", "proximal": 0.5}
    with_scaler, without = (in_process(scaled, 3, algorithm, fused, on, several) for on in (True, False))
    for found, wanted in zip(with_scaler, without, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def in_backward(model, how):
    """One optimizer a parameter, which steps as soon as the gradient is there."""
    parameters = list(model.parameters())
    if how == "torch":
        _apply_optimizer_in_backward(optim.SGD, parameters, {"lr": 0.1})
        return [one for p in parameters for one in p._in_backward_optimizers]
    each = {p: optim.SGD([p], lr=0.1) for p in parameters}

    def step(p):
        each[p].step()
        each[p].zero_grad()

    for p in parameters:
        p.register_post_accumulate_grad_hook(step)
    return list(each.values())


def backward_alone(model, optimizers, step, rank, engine):
    CASE.local_loss(model, step, rank).backward()
    yield


@pytest.mark.parametrize("how", ["torch", "hooks"])
def test_steps_inside_backward_go_with_averages_of_parameters(how):
    assert_by_hand(Shape(make_toy, lambda model: in_backward(model, how), backward_alone), "local_sgd")


@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd", "selsync", "streaming_diloco"])
@pytest.mark.parametrize("how", ["torch", "hooks"])
def test_steps_inside_backward_are_refused_where_gradients_would_be_missed(how, algorithm):
    model = make_toy()
    optimizers = in_backward(model, how)
    with (
        relaxcomm.attach(model, optimizers, algorithm),
        pytest.raises(UsageError, match=f"SGD steps inside backward, before {algorithm}.*local_sgd"),
    ):
        CASE.local_loss(model, 0, 0).backward()


@pytest.mark.parametrize("how", ["torch", "hooks"])
def test_so_are_those_of_which_attach_was_told_nothing(how):
    model = make_toy()
    in_backward(model, how)
    with (
        relaxcomm.attach(model, None, "bsp"),
        pytest.raises(UsageError, match="was taken away in the backward"),
    ):
        CASE.local_loss(model, 0, 0).backward()


@pytest.mark.parametrize("backwards", [1, 2])
def test_a_gradient_that_is_taken_away_is_named(backwards):
    """In the first backward, when the layout is not known yet, and in a later one."""
    model, seen = make_toy(), []

    def take(p):
        seen.append(p)
        if len(seen) == backwards:
            p.grad = None

    model[2].bias.register_post_accumulate_grad_hook(take)
    with relaxcomm.attach(model, None, "bsp"):
        for step in range(backwards - 1):
            CASE.local_loss(model, step, 0).backward()
        with pytest.raises(UsageError, match=r"gradient of 2\.bias was taken away.*local_sgd"):
            CASE.local_loss(model, 9, 0).backward()


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 3, sparse=True), nn.Linear(3, 2)
        self.double()

    def forward(self, tokens):
        return self.head(self.table(tokens))


def looked_up(model, optimizers, step, rank, engine):
    model(torch.tensor([step % 9, (step + rank) % 9])).square().sum().backward()
    yield
    for one in optimizers:
        one.step()
        one.zero_grad()


def sparse(model):
    return [optim.SparseAdam(model.table.parameters(), lr=0.01), optim.SGD(model.head.parameters(), lr=0.1)]


def test_sparse_gradients_stay_local():
    assert_by_hand(Shape(Table, sparse, looked_up), "local_sgd")


@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd", "selsync"])
def test_sparse_gradients_are_not_exchanged(algorithm):
    model = Table()
    with (
        relaxcomm.attach(model, sparse(model), algorithm),
        pytest.raises(UsageError, match=r"table\.weight has a sparse gradient.*local_sgd"),
    ):
        model(torch.tensor([1])).sum().backward()


class Lookahead(optim.Optimizer):
    """A wrapper as people write it: it shares the groups of the optimizer inside, and steps that."""

    def __init__(self, optimizer):
        self.inside, self.param_groups, self.calls = optimizer, optimizer.param_groups, 0
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self):
        self.inside.step()
        self.calls += 1
        fast = [p for group in self.param_groups for p in group["params"]]
        for slow, p in zip(self.slow, fast, strict=True) if self.calls % 2 == 0 else ():
            p.copy_(slow.lerp_(p, 0.5))


def test_a_wrapper_is_stepped_and_what_is_inside_is_attached():
    model = make_toy()
    wrapper = Lookahead(optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match=r"Lookahead wraps an optimizer.*pass the optimizer inside it"):
        relaxcomm.attach(model, wrapper, "bsp")

    def wrapped(model, optimizers, step, rank, engine):
        if not step:
            wrappers[optimizers[0]] = Lookahead(optimizers[0])
        yield from loop(model, [], step, rank, engine)
        wrappers[optimizers[0]].step()
        optimizers[0].zero_grad()

    wrappers: dict[optim.Optimizer, Lookahead] = {}
    assert_by_hand(Shape(make_toy, OPTIMIZERS["SGD foreach"], wrapped), "bsp")


def test_lbfgs_is_refused_with_a_reason_of_its_own():
    model = make_toy()
    optimizer = optim.LBFGS(model.parameters())
    with relaxcomm.attach(model, optimizer, "local_sgd"), pytest.raises(UsageError, match=r"LBFGS.*another"):
        optimizer.step(lambda: CASE.local_loss(model, 0, 0))


def test_a_schedule_of_each_ranks_own_loss_is_found_by_the_drift_guard():
    """As under DDP, ranks that step ReduceLROnPlateau with their own loss come apart."""

    def program(world):
        model = CASE.model(seed=0)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        schedule = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        config = {"algorithm": "bsp", "drift_guard": {"every_steps": 2}}
        with world.attach(model, optimizer, config):
            for step in range(9):
                loss = CASE.local_loss(model, step, world.rank)
                take_step(loss, optimizer)
                schedule.step(loss.item())

    with pytest.raises(relaxcomm.RelaxcommError, match="different values of"):
        in_process(program, 3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_complex_parameters_go_as_they_are_or_are_refused(algorithm):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Parameter(0.3 * torch.randn(6, 5, dtype=torch.complex128))
            self.second = nn.Parameter(0.3 * torch.randn(5, 4, dtype=torch.complex128))

        def forward(self, x):
            return (x.to(torch.complex128) @ self.first @ self.second).abs()

    shape = Shape(Complex, lambda m: [optim.SGD(m.parameters(), lr=0.05)], loop)
    if algorithm == "topk_sgd":
        with pytest.raises(CompositionError, match=r"is complex, with which .*top_k.*view_as_complex"):
            assert_by_hand(shape, algorithm)
    else:
        assert_by_hand(shape, algorithm)


ADAPTIVE = Algorithm((Rule(payload=deltas(), exchange=all_reduce(), outer=adam(lr=0.1)),), name="adaptive")


ROBUST = Algorithm((Rule(payload=gradients(), exchange=trimmed_mean(trim=1)),), name="robust")


@pytest.mark.parametrize("algorithm", ["selsync", "powersgd", "signsgd", ADAPTIVE, ROBUST])
def test_what_compares_entries_refuses_complex_ones(algorithm):
    model = nn.ParameterList([torch.zeros(3, 2, dtype=torch.complex64)])
    with pytest.raises(CompositionError, match="0 is complex, with which"):
        relaxcomm.attach(model, optim.SGD(model.parameters(), lr=0.1), algorithm)


class Matrix(nn.Module):
    """A complex one, kept as such or as its real and imaginary parts."""

    def __init__(self, is_complex):
        super().__init__()
        matrix = torch.complex(*torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).double())
        self.matrix = nn.Parameter(matrix if is_complex else torch.view_as_real(matrix))

    def forward(self, x):
        matrix = self.matrix if self.matrix.is_complex() else torch.view_as_complex(self.matrix)
        return (x.to(matrix.dtype) @ matrix).abs()


def trained_matrix(world, algorithm, is_complex):
    """The matrix after some rounds, and the sizes of the batches."""
    model, sizes = Matrix(is_complex), []
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    samples = torch.randn(36, 6, generator=torch.Generator().manual_seed(1)).double()
    with world.attach(model, optimizer, algorithm) as engine:
        for batch in (one for _ in range(3) for one in engine.loader(samples, batch_size=4)):
            sizes.append(len(batch))
            for x, share in engine.micro_batches(batch, 2):
                (share * model(x).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return torch.view_as_real(model.matrix.detach()) if is_complex else model.matrix.detach(), sizes


@frozen
class half(Compressor):
    """Sends the half of each entry, and doubles what comes."""

    facts = identity.facts
    takes_complex = True

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        parts = yield Dense(tensor / 2)
        return sum(2 * weight * one.tensor for weight, one in parts), tensor.clone()

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


@frozen
class twice(Outer):
    """Moves twice as far as the workers have."""

    facts = sgd.facts
    takes_complex = True

    def init(self, bucket):
        return {"momentum": bucket.zeros()}

    def apply(self, cx, bucket, state, result, base):
        return base - 2 * result


def watched(controller):
    rule = Rule(payload=gradients(), exchange=all_reduce())
    return Algorithm((rule,), name="watched", controllers=(controller,))


CODED = Algorithm((Rule(payload=gradients(), compressor=half(), exchange=all_reduce()),), name="coded")
MOVED = Algorithm((Rule(payload=deltas(), exchange=all_reduce(), outer=twice()),), name="moved")
PROXIMAL = {"algorithm": {"name": "fedavg", "proximal": 0.1, "clients": 5}}
TESTS = norm_test(rule=0, tolerance=0.5), sample_norm_test(rule=0, tolerance=0.2)


@pytest.mark.parametrize("algorithm", [PROXIMAL, *map(watched, TESTS), CODED, MOVED], ids=str)
def test_complex_parameters_train_as_their_real_and_imaginary_parts(algorithm):
    (one, sizes), (other, other_sizes) = (
        in_process(trained_matrix, 3, algorithm, is_complex)[0] for is_complex in (True, False)
    )
    torch.testing.assert_close(one, other)
    assert sizes == other_sizes


@pytest.mark.parametrize(("algorithm", "kind"), [(CODED, half), (MOVED, twice)], ids=["coded", "moved"])
def test_one_that_does_not_say_that_it_takes_complex_entries_is_refused(algorithm, kind, monkeypatch):
    monkeypatch.delattr(kind, "takes_complex")
    test_what_compares_entries_refuses_complex_ones(algorithm)


@pytest.mark.parametrize("algorithm", ["d_psgd", "async_model_average", {"rules": [LATE]}], ids=str)
def test_a_late_average_of_complex_parameters_is_saved_and_loaded(algorithm):
    def program(world):
        model = nn.Linear(3, 2, dtype=torch.complex64)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
            for _ in range(3):
                model(torch.ones(1, 3, dtype=torch.complex64)).abs().sum().backward()
                optimizer.step()
            saved = engine_state(engine)["late_parameters"]
            engine.load_state_dict(engine.state_dict())
        return len(saved)

    assert all(in_process(program, 3))


class ZeroRedundancyOptimizer(optim.SGD):
    """Has its name and its module's: torch's own needs a process group."""

    __module__ = "torch.distributed.optim.zero_redundancy_optimizer"


def test_one_that_sends_parameters_is_refused_where_replicas_differ():
    model = make_toy()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), lr=0.1)
    with pytest.raises(CompositionError, match=r"ZeroRedundancyOptimizer has each rank step its part.*bsp"):
        relaxcomm.attach(model, optimizer, "local_sgd")
    with (
        relaxcomm.attach(model, optimizer, "bsp") as engine,
        pytest.raises(CompositionError, match="ZeroRedundancyOptimizer"),
    ):
        engine.switch("local_sgd")

"""What algorithms are tried on: a small convex problem on simulated ranks, with two buckets."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from relaxcomm.checks.finding import Broken
from relaxcomm.checks.trial_model import trial_model
from relaxcomm.checks.world_sizes import sizes_for
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.data.clients import CLIENT, ROUND
from relaxcomm.engine import Engine, attach
from relaxcomm.engine.reporting.run_warnings import LOGGER
from relaxcomm.errors import CompositionError, TopologyError
from relaxcomm.network import InProcessGroup, simulate
from relaxcomm.system.telling import silence
from relaxcomm.topology import Topology, complete, hierarchical, ring, star

_SAMPLES, _INPUTS, _OUTPUTS, _BATCH = 96, 12, 4, 8
_TOPOLOGIES: tuple[Topology, ...] = (complete(), hierarchical(sizes=(2, 1)), ring(), star())
BUCKET_BYTES = 4 * _INPUTS * _OUTPUTS  # two buckets

T = TypeVar("T")


@dataclass
class Rank:
    """One rank's model in training.

    Args:
        group: of the simulation.
        settings: of `attach`.
        make_optimizer: of the parameters.
    """

    group: InProcessGroup
    settings: dict[str, Any]
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    history: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.group.rank())  # attach makes the models equal
        algorithm = parse_algorithm(self.settings["algorithm"])
        self.model = trial_model(algorithm, _INPUTS, _OUTPUTS)
        self.optimizer = self.make_optimizer(list(self.model.parameters()))
        rates = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step / 60))
        self.schedule = rates
        self.engine: Engine = attach(self.model, self.optimizer, self.settings, process_group=self.group)
        events = {rule.trigger.facts.event for rule in algorithm.rules} - {None, CLIENT, ROUND}
        self._events = sorted(map(str, events))  # of which no loader tells
        data = torch.utils.data.TensorDataset(*problem())
        self.loader = self.engine.loader(data, batch_size=_BATCH)

    def epochs(self, number: int) -> list[Tensor]:
        """Train on this rank's share so often; returns the parameters after every step."""
        for _ in range(number):
            self._epoch()
        return self.history

    def _epoch(self) -> None:
        """Once, noting the parameters; then events come."""
        for batch in self.loader:
            self.group.sleep(1.0)
            for (x, y), share in self.engine.micro_batches(batch, _BATCH // 2):
                loss = share * (self.model(x) - y).square().mean()
                self.engine.observe(loss=loss)
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.history.append(self.parameters)
        for event in self._events:
            try:
                self.engine.mark(event)
            except KeyError as error:
                raise Broken(
                    f"raises KeyError: {error} at the event {event!r}, of which trial runs tell without "
                    "numbers, as a training loop may; of those that it may lack, take facts.get(name, …)"
                ) from error

    @property
    def parameters(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    def save(self) -> dict[str, Any]:
        """All that a checkpoint needs."""
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        saved = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        return {**saved, "engine": self.engine.state_dict()}

    def load(self, saved: dict[str, Any]) -> None:
        """Put it back."""
        for name in ("model", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(saved[name])
        self.engine.load_state_dict(saved["engine"])


def settings_of(
    algorithm: object, topology: Topology | str | Mapping[str, Any] | None, **defaults: Any
) -> dict[str, Any]:
    """The configuration of a trial.

    Args:
        algorithm: as a configuration's key `algorithm` has it, or the mapping with that key.
        topology: that wins over the mapping's, or None.
        defaults: where the mapping says nothing.

    Example:
        >>> settings_of({"algorithm": "bsp", "topology": "ring"}, None, seed=1)
        {'seed': 1, 'algorithm': 'bsp', 'topology': 'ring'}
    """
    if isinstance(algorithm, Mapping) and "algorithm" in algorithm and "name" not in algorithm:
        defaults |= algorithm
    else:
        defaults["algorithm"] = algorithm
    return defaults | ({} if topology is None else {"topology": topology})


def quietly(program: Callable[[InProcessGroup], T], size: int) -> list[T]:
    """What `simulate` returns; what so short a run chooses, or that it never exchanged, is no news."""
    LOGGER.disabled = True
    try:
        with silence():
            return simulate(program, size)
    finally:
        LOGGER.disabled = False


def problem() -> tuple[Tensor, Tensor]:
    """Inputs and targets of a linear least-squares problem with noise, of the type that models have now."""
    return _problem(torch.get_default_dtype())


@cache
def _problem(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(_SAMPLES, _INPUTS, generator=draw, dtype=dtype)
    truth = torch.randn(_INPUTS, _OUTPUTS, generator=draw, dtype=dtype)
    return x, x @ truth + 0.1 * torch.randn(_SAMPLES, _OUTPUTS, generator=draw, dtype=dtype)


def excess(parameters: Tensor) -> float:
    """The loss above the least possible one, as a share of that of zero parameters."""
    (x, y), least = problem(), _least_loss(torch.get_default_dtype())
    weight, bias = parameters[: _INPUTS * _OUTPUTS].view(_OUTPUTS, _INPUTS), parameters[_INPUTS * _OUTPUTS :]
    loss = float((x @ weight.t() + bias - y).square().mean())
    return (loss - least) / (float(y.square().mean()) - least)


@cache
def _least_loss(dtype: torch.dtype) -> float:
    x, y = _problem(dtype)
    wide = torch.cat([x, torch.ones(len(x), 1, dtype=dtype)], dim=1)
    return float((wide @ torch.linalg.lstsq(wide, y).solution - y).square().mean())


def plain_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of trials, unless an algorithm refuses it."""
    return torch.optim.SGD(parameters, lr=0.1)


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.04)


class Trial:
    """An algorithm, and a world size, a topology and an optimizer that it can work with."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.settings: dict[str, Any] = {"algorithm": algorithm, "bucket_bytes": BUCKET_BYTES}
        self._fit()

    def run(self, program: Callable[[Rank], Any], size: int | None = None, **settings: Any) -> list[Any]:
        """What a program returns on every rank; it closes the engine itself if it needs to."""

        def rank(group: InProcessGroup) -> Any:
            made = Rank(group, {**self.settings, **settings}, self.make_optimizer)
            with made.engine:
                return program(made)

        return quietly(rank, size or self.size)

    def _fit(self) -> None:
        """Choose the first world size, topology and optimizer that are not refused."""
        refused = []
        choices = itertools.product(sizes_for(self.algorithm), _TOPOLOGIES, (plain_sgd, _adam))
        for self.size, self.settings["topology"], self.make_optimizer in choices:
            try:
                self.run(lambda rank: None)
            except (CompositionError, TopologyError) as error:
                refused.append(str(error))
            else:
                return
        raise Broken(f"no topology and optimizer that were tried are accepted: {refused[0]}")

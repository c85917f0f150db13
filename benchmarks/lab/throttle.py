"""A stand-in for a slow network where no hosts can be made: contenders over a throttled transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.lab.contenders import Contender, EveryStep, Nothing, Relaxcomm
from benchmarks.lab.network import BURST_BYTES
from relaxcomm import Link
from relaxcomm.config import load
from relaxcomm.network import Throttle, parse_rate
from relaxcomm.network.operations import Label
from relaxcomm.plugin import AllReduce
from relaxcomm.training.job_group import throttled

_CPU = torch.device("cpu")


def link_of(rate: str | None) -> Link:
    """A link of a rate as `tc` writes it, such as "100mbit"; None is as fast as can be."""
    return Link() if rate is None else Link(bytes_per_second=parse_rate(rate), burst_bytes=BURST_BYTES)


def throttle_of(rate: str | None) -> Throttle:
    """A rank's link as `network.Host` shapes it."""
    return Throttle(link_of(rate))


class ThrottledEveryStep(EveryStep):
    """The last average, over a throttled transport."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, throttle: Throttle) -> None:
        super().__init__(model, optimizer)
        self._transport = throttled(load({"algorithm": "bsp"}), _CPU, throttle)

    def add_up(self, flat: Tensor) -> None:
        self._transport.issue(AllReduce(flat, "sum"), Label(0, "every_step")).wait()

    def close(self) -> None:
        self._transport.close()


class ThrottledRelaxcomm(Relaxcomm):
    """relaxcomm, over a throttled transport."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        throttle: Throttle,
        muon: bool = False,
        **config: Any,
    ) -> None:
        transport = throttled(load(config), _CPU, throttle)
        super().__init__(model, optimizer, process_group=transport, muon=muon, **config)


CAN: Mapping[str, Callable[..., Contender]] = {
    "nothing": lambda model, optimizer, throttle: Nothing(model, optimizer),
    "every_step": ThrottledEveryStep,
    "relaxcomm": ThrottledRelaxcomm,
}
CANNOT = "It uses torch.distributed directly, past the throttle at relaxcomm's transport."

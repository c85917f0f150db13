"""Numbers that cost a look at the whole model, taken now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relaxcomm.composition.algorithm import Rule
from relaxcomm.roles.trigger import REPLICA_DISTANCE
from relaxcomm.tensors.buckets import Bucket

if TYPE_CHECKING:
    from relaxcomm.engine.run import Run

_SHARE = 1 / 1000


class Samples:
    """Norms of the residual, of the parameters and of the distance between replicas.

    Each is taken at a synchronisation, if the last one's cost is by then less than a thousandth of the
    time that has passed. On a GPU the norms stay tensors, so that the host does not wait.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.enabled = False
        self._residual = _Budget()
        self._distance = _Budget()

    def wants_distance(self, rule: Rule) -> bool:
        """Whether to take the distance at the exchange of a rule that begins."""
        if not rule.payload.averages_buffers or rule.payload.has_weight:  # it does not carry the model
            return False
        triggers = self._run.votes.slots
        return any(REPLICA_DISTANCE in trigger.looks_at for trigger in triggers) or (
            self.enabled and self._distance.allows()
        )

    def keep(self, rule: Rule, bucket: Bucket, sent: Tensor) -> Tensor:
        """This rank's side of an exchange, to be compared with its result."""
        with self._distance.spending():
            return bucket.gather(bucket.empty()) if rule.exchange.returns_base else sent.clone()

    def distance(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Keep how far this rank's tensors were from the combined ones."""
        if not pairs:
            return
        with self._distance.spending():
            latest = self._run.statistics.latest
            latest[REPLICA_DISTANCE] = _norm(mine - combined for mine, combined in pairs)
            latest["parameter_norm"] = _norm(item.tensor.detach() for item in self._run.parameters)

    def residual(self) -> None:
        """Keep the norm of all residuals, if it is time."""
        if not self.enabled or not self._residual.allows():
            return
        with self._residual.spending():
            held = [
                slots[slot]
                for state in self._run.state.values()
                for slots in state.roles.values()
                for slot in slots
                if slot.rpartition(".")[2] == "residual"
            ]
            if held:
                self._run.statistics.latest["residual_norm"] = _norm(held)
            else:
                self._residual.give_up()


class _Budget:
    """Lets something happen as long as it takes no more than a small share of the time."""

    def __init__(self) -> None:
        self._next = 0.0

    def allows(self) -> bool:
        """Whether there is time."""
        return time.perf_counter() >= self._next

    def give_up(self) -> None:
        """Let it happen no more."""
        self._next = math.inf

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the time that something takes."""
        begin = time.perf_counter()
        yield
        end = time.perf_counter()
        self._next = max(self._next, end) + (end - begin) / _SHARE


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of all tensors together, on the device of the first."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    together: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return together

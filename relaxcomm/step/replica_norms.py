"""Numbers that cost a look at the whole model, taken now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from relaxcomm.composition.rule import Rule
from relaxcomm.roles import VotingTrigger
from relaxcomm.roles.trigger import REPLICA_DISTANCE
from relaxcomm.step.state import RuleState
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item

_SHARE = 1 / 1000


class ReplicaNorms:
    """Norms of the residual, of the parameters and of the distance between replicas.

    Each is taken at a synchronisation, if the last one's cost is by then less than a thousandth of the
    time that has passed. On a GPU the norms stay tensors, so that the host does not wait.

    Args:
        parameters: of this rank.
        latest: where they are kept, by name.
    """

    def __init__(self, parameters: Sequence[Item], latest: dict[str, float | Tensor]) -> None:
        self._parameters, self._latest = parameters, latest
        self.enabled = False
        """Whether somebody looks at them."""
        self._residual = _Budget()
        self._distance = _Budget()

    def wants_distance(self, rule: Rule, triggers: Iterable[VotingTrigger]) -> bool:
        """Whether to take the distance at the exchange of a rule that begins.

        Args:
            rule: that exchanges.
            triggers: some of which may look at the distance.
        """
        if (
            not rule.payload.facts.moves_model or rule.payload.facts.extra_entries
        ):  # it does not carry the model
            return False
        return any(REPLICA_DISTANCE in trigger.facts.looks_at for trigger in triggers) or (
            self.enabled and self._distance.allows()
        )

    def side(self, rule: Rule, bucket: Bucket, sent: Tensor) -> Tensor:
        """This rank's side of an exchange, to be compared with its result."""
        with self._distance.spending():
            return bucket.gather(bucket.empty()) if rule.exchange.facts.returns == "base" else sent.clone()

    def distance(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Keep how far this rank's tensors were from the combined ones."""
        if not pairs:
            return
        with self._distance.spending():
            self._latest[REPLICA_DISTANCE] = _norm(mine - combined for mine, combined in pairs)
            self._latest["parameter_norm"] = _norm(item.tensor.detach() for item in self._parameters)

    def residual(self, states: Iterable[RuleState]) -> None:
        """Keep the norm of all residuals, if it is time."""
        if not self.enabled or not self._residual.allows():
            return
        with self._residual.spending():
            held = [
                slots[slot]
                for state in states
                for slots in state.values()
                for slot in slots
                if slot.rpartition(".")[2] == "residual"
            ]
            if held:
                self._latest["residual_norm"] = _norm(held)
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

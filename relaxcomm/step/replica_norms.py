"""Numbers that cost a look at the whole model, taken now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relaxcomm.composition.rule import Rule
from relaxcomm.roles import VotingTrigger
from relaxcomm.roles.trigger import REPLICA_DISTANCE
from relaxcomm.step.state import RuleState
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item

_SHARE = 1 / 1000


@dataclass
class Comparison:
    """How far this rank is from the others at one exchange, whose results may come in several steps."""

    num_left: int = 0  # sides whose results have not come
    distances: list[Tensor] = field(default_factory=list)  # of those that have


@dataclass(frozen=True)
class Side:
    """This rank's side of the exchange of one bucket."""

    tensor: Tensor
    compared: Comparison


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

    def comparison(self, rule: Rule, triggers: Iterable[VotingTrigger]) -> Comparison | None:
        """What takes the distance at the exchange of a rule that begins, or None.

        Args:
            rule: that exchanges.
            triggers: some of which may look at the distance.
        """
        payload = rule.payload.facts
        # It does not carry the model, or what comes back is moved by more than others' models.
        if not payload.moves_model or payload.extra_entries or rule.exchange.facts.applies_outer:
            return None
        is_wanted = any(REPLICA_DISTANCE in trigger.facts.looks_at for trigger in triggers) or (
            self.enabled and self._distance.allows()
        )
        return Comparison() if is_wanted else None

    def side(self, compared: Comparison, rule: Rule, bucket: Bucket, sent: Tensor) -> Side:
        """This rank's side of an exchange, to be compared with its result."""
        with self._distance.spending():
            compared.num_left += 1
            is_base = rule.exchange.facts.returns == "base"
            return Side(bucket.gather(bucket.empty()) if is_base else sent.clone(), compared)

    def compare(self, results: Iterable[tuple[Side, Tensor | None]]) -> None:
        """Take in results, None where nobody has met this rank; keep the distance when all have come."""
        for side, combined in results:
            compared = side.compared
            compared.num_left -= 1
            if combined is not None:
                with self._distance.spending():
                    compared.distances.append(_norm([side.tensor - combined]))
            if compared.distances and not compared.num_left:
                self.distance(compared.distances)

    def distance(self, differences: Iterable[Tensor]) -> None:
        """Keep the norm of what lies between this rank's tensors and the combined ones."""
        with self._distance.spending():
            self._latest[REPLICA_DISTANCE] = _norm(differences)
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


class _Budget:
    """Lets something happen as long as it takes no more than a small share of the time."""

    def __init__(self) -> None:
        self._next = 0.0

    def allows(self) -> bool:
        """Whether there is time."""
        return time.perf_counter() >= self._next

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the time that something takes."""
        begin = time.perf_counter()
        yield
        end = time.perf_counter()
        self._next = max(self._next, end) + (end - begin) / _SHARE


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of all tensors together, on the device of the first; 0 of none."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    if not norms:
        return torch.zeros((), dtype=torch.float64)
    together: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return together

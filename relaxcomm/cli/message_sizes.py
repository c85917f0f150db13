"""What a rule sends, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from relaxcomm.composition import fragments
from relaxcomm.composition.rule import Rule
from relaxcomm.errors import RelaxcommError
from relaxcomm.roles import Compressor, Exchange
from relaxcomm.system.quantities import data_size
from relaxcomm.tensors.layout import Layout, one_matrix
from relaxcomm.topology import Topology

_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class CountedFor:
    """The model that bytes are counted for.

    Args:
        layout: its parameters.
        task: that it is of; None for parameters in one matrix, as near to a square as can be.
    """

    layout: Layout
    task: str | None = None

    @classmethod
    def matrix(cls, num_parameters: int) -> CountedFor:
        """A model of which only the size is known."""
        return cls(one_matrix(num_parameters))

    @classmethod
    def task_model(cls, task: str, parameters: Iterable[tuple[str, Tensor]]) -> CountedFor:
        """A task's model."""
        names, tensors = zip(*((name, p) for name, p in parameters if p.requires_grad), strict=True)
        return cls(Layout(names, tuple(tensor.shape for tensor in tensors)), task)

    def covered(self, rule: Rule) -> CountedFor:
        """What a rule covers of it; of a model of which only the size is known, fragments are equal parts.

        Raises: CompositionError for more fragments than parameters.
        """
        if rule.select is None:
            return self
        if self.task is None:
            return CountedFor.matrix(round(fragments.share(rule.select) * self.layout.numel))
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        resolved = rule.over({name: shape.numel() for name, shape in shapes.items()})
        names = tuple(filter(resolved.covers, shapes))
        return CountedFor(Layout(names, tuple(shapes[name] for name in names)), self.task)

    def in_words(self, compressor: Compressor) -> str:
        """What it is, and its shape if the bytes depend on that."""
        size = f"{self.layout.numel:,} float32 parameters"
        if self.task is not None:
            return f"the {size} of {self.task}"
        seen = compressor.layout_bytes(self.layout, _ELEMENT_BYTES)
        if seen == compressor.message_bytes(self.layout.numel, _ELEMENT_BYTES):
            return size
        rows, columns = self.layout.shapes[0]
        return f"{size} in one matrix of {rows:,} x {columns:,} (--task counts a model's own shapes)"


def sent_in_words(rule: Rule, layout: Layout, world_size: int, topology: Topology) -> str:
    """The bytes of a rule, an exchange and a step, and those later on if another compressor codes then."""
    period, said = rule.trigger.facts.period_steps, []
    phases = rule.compressor.phases
    for index, (_, compressor) in enumerate(phases):
        try:
            an_exchange = exchange_bytes(rule.exchange, compressor, layout, world_size, topology)
        except RelaxcommError as error:
            return f"not possible: {error}"
        words = f"{data_size(an_exchange)} an exchange, at most {data_size(an_exchange / period)} a step"
        if index + 1 < len(phases):
            words += f" in the first {phases[index + 1][0]} steps"
        said.append(words)
    return ", then ".join(said)


def exchange_bytes(
    exchange: Exchange, compressor: Compressor, layout: Layout, world_size: int, topology: Topology
) -> float:
    """What a rank sends in one exchange of float32 tensors, on average over the ranks."""
    coded = exchange.coded_bytes(compressor, layout, _ELEMENT_BYTES, world_size)
    answers = exchange.answers_sent(layout.numel * _ELEMENT_BYTES, world_size, topology)
    return exchange.bytes_sent(coded, world_size, topology) + answers

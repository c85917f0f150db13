"""What a rule sends, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaxcomm.composition import fragments
from relaxcomm.composition.exchange_cost import exchange_cost
from relaxcomm.composition.rule import Rule
from relaxcomm.errors import RelaxcommError
from relaxcomm.planner.replay import shapes_only
from relaxcomm.roles import Compressor
from relaxcomm.roles.payload import read_as
from relaxcomm.system.quantities import data_size
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout, one_matrix
from relaxcomm.topology import Topology


@dataclass(frozen=True)
class CountedFor:
    """The model that bytes are counted for.

    Args:
        items: its parameters; shapes are enough.
        task: that it is of; None for float32 parameters in one matrix, as near to a square as can be.
    """

    items: Sequence[Item]
    task: str | None = None

    @classmethod
    def matrix(cls, num_parameters: int) -> CountedFor:
        """A model of which only the size is known."""
        return cls(shapes_only(one_matrix(num_parameters).shapes))

    @classmethod
    def task_model(cls, task: str, parameters: Iterable[tuple[str, Tensor]]) -> CountedFor:
        """A task's model."""
        return cls([Item(name, p) for name, p in parameters if p.requires_grad], task)

    @property
    def layouts(self) -> dict[torch.dtype, Layout]:
        """How the parameters of each type lie, which travel apart."""
        held: dict[torch.dtype, list[Item]] = {}
        for item in self.items:
            held.setdefault(item.tensor.dtype, []).append(item)
        return {
            dtype: Layout(tuple(one.name for one in items), tuple(one.tensor.shape for one in items))
            for dtype, items in held.items()
        }

    def covered(self, rule: Rule) -> CountedFor:
        """What a rule covers of it; of a model of which only the size is known, fragments are equal parts.

        Raises: CompositionError for more fragments than parameters.
        """
        if rule.select is None:
            return self
        sizes = {item.name: item.tensor.numel() for item in self.items}
        if self.task is None:
            return CountedFor.matrix(round(fragments.share(rule.select) * sum(sizes.values())))
        resolved = rule.over(sizes)
        return CountedFor([item for item in self.items if resolved.covers(item.name)], self.task)

    def in_words(self, compressor: Compressor) -> str:
        """What it is, and its shape if the bytes depend on that."""
        layouts = self.layouts
        numbers = (f"{layout.numel:,} {type_name(dtype)}" for dtype, layout in layouts.items())
        size = f"{' and '.join(numbers) or 0} parameters"
        if self.task is not None:
            return f"the {size} of {self.task}"
        ((dtype, layout),) = layouts.items()
        seen = compressor.layout_bytes(layout, dtype.itemsize)
        if seen == compressor.message_bytes(layout.numel, dtype.itemsize):
            return size
        rows, columns = layout.shapes[0]
        return f"{size} in one matrix of {rows:,} x {columns:,} (--task counts a model's own shapes)"


def type_name(dtype: torch.dtype) -> str:
    """A type's name as YAML has it.

    Example:
        >>> import torch
        >>> type_name(torch.bfloat16)
        'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def sent_in_words(rule: Rule, model: CountedFor, world_size: int, topology: Topology) -> str:
    """The bytes of a rule, an exchange and a step, and those later on if another compressor codes then."""
    period, said = rule.trigger.facts.period_steps, []
    phases = rule.compressor.phases
    for index, (_, compressor) in enumerate(phases):
        try:
            an_exchange = _exchange_bytes(rule, compressor, model, world_size, topology)
        except RelaxcommError as error:
            return f"not possible: {error}"
        words = f"{data_size(an_exchange)} an exchange, at most {data_size(an_exchange / period)} a step"
        if index + 1 < len(phases):
            words += f" in the first {phases[index + 1][0]} steps"
        said.append(words)
    return ", then ".join(said)


def _exchange_bytes(
    rule: Rule, compressor: Compressor, model: CountedFor, world_size: int, topology: Topology
) -> float:
    """What a rank sends in one exchange, on average over the ranks."""
    return sum(
        exchange_cost(
            rule.exchange,
            compressor,
            layout,
            read_as(rule.payload, dtype).itemsize,
            world_size,
            topology,
            exact=rule.payload.facts.site == "step",
        ).sent_bytes
        for dtype, layout in model.layouts.items()
    )

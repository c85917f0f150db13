"""What a rule sends, in words."""

from __future__ import annotations

from relaxcomm.algorithm import Rule
from relaxcomm.cli.table import data_size
from relaxcomm.errors import RelaxcommError
from relaxcomm.layout import Layout, one_matrix
from relaxcomm.protocol import Compressor, Exchange
from relaxcomm.topology import Topology

_ELEMENT_BYTES = 4


def shape_in_words(compressor: Compressor, num_parameters: int) -> str:
    """What the bytes were counted for, if they depend on the tensors' shapes."""
    matrix = one_matrix(num_parameters)
    seen = compressor.layout_bytes(matrix, _ELEMENT_BYTES)
    if seen == compressor.message_bytes(num_parameters, _ELEMENT_BYTES):
        return ""
    return " in one matrix of {:,} x {:,} (a model's shapes decide)".format(*matrix.shapes[0])


def sent_in_words(rule: Rule, num_parameters: int, world_size: int, topology: Topology) -> str:
    """The bytes of a rule, an exchange and a step, and those later on if another compressor codes then."""
    layout, period, said = one_matrix(num_parameters), rule.trigger.period_steps, []
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

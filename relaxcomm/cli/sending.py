"""What a rule sends, in words."""

from __future__ import annotations

from relaxcomm.algorithm import Rule
from relaxcomm.cli.table import data_size
from relaxcomm.errors import RelaxcommError
from relaxcomm.layout import one_matrix
from relaxcomm.protocol import Compressor
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
    """The bytes of a rule, an exchange and a step."""
    message_bytes = rule.compressor.layout_bytes(one_matrix(num_parameters), _ELEMENT_BYTES)
    try:
        an_exchange = rule.exchange.bytes_sent(message_bytes, world_size, topology)
        an_exchange += rule.exchange.answers_sent(num_parameters * _ELEMENT_BYTES, world_size, topology)
    except RelaxcommError as error:
        return f"not possible: {error}"
    period = rule.trigger.period_steps
    return f"{data_size(an_exchange)} an exchange, at most {data_size(an_exchange / period)} a step"

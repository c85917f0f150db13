"""Which exchange suits a compressor."""

from relaxcomm.primitives.exchanges.all_gather import all_gather
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.scatter_gather import scatter_gather
from relaxcomm.roles import Compressor, Exchange
from relaxcomm.tensors.messages import QUANTIZED, SIGNS

_SAME_SIZE = frozenset({QUANTIZED, SIGNS})  # a mean of such messages takes as many bytes as one of them


def exchange_for(compressor: Compressor) -> Exchange:
    """The cheapest exchange with all ranks that takes a compressor's messages.

    Args:
        compressor: whose messages.

    Returns: `all_reduce()` if the network can sum them; `scatter_gather()` if their mean can be coded in
        as many bytes as one of them, and nothing is kept for the next one; `all_gather()` otherwise, which
        leaves what is kept with its parameter when buckets change.

    Example:
        >>> from relaxcomm.primitives import exchange_for, identity, quantize, top_k
        >>> [exchange_for(compressor) for compressor in (identity(), quantize(bits=8), top_k(density=0.01))]
        [all_reduce(), scatter_gather(), all_gather()]
    """
    if compressor.facts.kinds <= all_reduce.facts.accepts:
        return all_reduce()
    if compressor.facts.kinds <= _SAME_SIZE and compressor.facts.memory == "none":
        return scatter_gather()
    return all_gather()

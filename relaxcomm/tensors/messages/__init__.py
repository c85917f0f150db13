"""What a compressor hands to an exchange: an encoded tensor and how it may be combined.

A message kind says what the network may do with it. `dense` and `shared_support` messages can be
summed element by element in the network, of `maximum` messages the largest entries are found there;
all others must be gathered and decoded first.
"""

from relaxcomm.tensors.messages.message import (
    ALL_KINDS,
    DENSE,
    MAXIMUM,
    MIXED,
    QUANTIZED,
    SHARED_SUPPORT,
    SIGNS,
    SPARSE,
    SUMMABLE,
    Dense,
    Maximum,
    Message,
    Several,
    SharedSupport,
    pieces,
)
from relaxcomm.tensors.messages.quantized_message import Quantized, Signs
from relaxcomm.tensors.messages.sparse_message import (
    MOST_PLACES,
    BlockSparse,
    Coefficients,
    Sparse,
    SparseOf,
    block_starts,
    largest_block,
)

__all__ = [
    "ALL_KINDS",
    "DENSE",
    "MAXIMUM",
    "MIXED",
    "MOST_PLACES",
    "QUANTIZED",
    "SHARED_SUPPORT",
    "SIGNS",
    "SPARSE",
    "SUMMABLE",
    "BlockSparse",
    "Coefficients",
    "Dense",
    "Maximum",
    "Message",
    "Quantized",
    "Several",
    "SharedSupport",
    "Signs",
    "Sparse",
    "SparseOf",
    "block_starts",
    "largest_block",
    "pieces",
]

"""Compressors: how a tensor is encoded."""

from relaxcomm.primitives.compressors.adaptive import adaptive_top_k
from relaxcomm.primitives.compressors.blocks import chunk_top_k, dct_top_k
from relaxcomm.primitives.compressors.chained import chain
from relaxcomm.primitives.compressors.count_sketch import count_sketch
from relaxcomm.primitives.compressors.dense import cast, identity
from relaxcomm.primitives.compressors.drawn import qsgd, terngrad
from relaxcomm.primitives.compressors.feedback import error_feedback, momentum_correction
from relaxcomm.primitives.compressors.gaussian import gaussian_k
from relaxcomm.primitives.compressors.low_rank import power_sgd
from relaxcomm.primitives.compressors.natural_powers import natural
from relaxcomm.primitives.compressors.quantize import minmax_uint8, quantize
from relaxcomm.primitives.compressors.random import random_k
from relaxcomm.primitives.compressors.signs import sign
from relaxcomm.primitives.compressors.sorting import by_name, by_size
from relaxcomm.primitives.compressors.switching import switch
from relaxcomm.primitives.compressors.thresholds import dgc, redsync
from relaxcomm.primitives.compressors.top import top_k
from relaxcomm.primitives.compressors.tracking import ef21

__all__ = [
    "adaptive_top_k",
    "by_name",
    "by_size",
    "cast",
    "chain",
    "chunk_top_k",
    "count_sketch",
    "dct_top_k",
    "dgc",
    "ef21",
    "error_feedback",
    "gaussian_k",
    "identity",
    "minmax_uint8",
    "momentum_correction",
    "natural",
    "power_sgd",
    "qsgd",
    "quantize",
    "random_k",
    "redsync",
    "sign",
    "switch",
    "terngrad",
    "top_k",
]

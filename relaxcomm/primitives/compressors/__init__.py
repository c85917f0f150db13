"""Compressors: how a tensor is encoded."""

from relaxcomm.primitives.compressors.adaptive_top_k import adaptive_top_k
from relaxcomm.primitives.compressors.cast import cast, identity
from relaxcomm.primitives.compressors.chain import chain
from relaxcomm.primitives.compressors.chunk_top_k import chunk_top_k, dct_top_k
from relaxcomm.primitives.compressors.count_sketch import count_sketch
from relaxcomm.primitives.compressors.dgc import dgc, redsync
from relaxcomm.primitives.compressors.ef21 import ef21
from relaxcomm.primitives.compressors.error_feedback import error_feedback, momentum_correction
from relaxcomm.primitives.compressors.gaussian_k import gaussian_k
from relaxcomm.primitives.compressors.natural_powers import natural
from relaxcomm.primitives.compressors.per_tensor import by_name, by_size
from relaxcomm.primitives.compressors.power_sgd import power_sgd
from relaxcomm.primitives.compressors.quantize import minmax_uint8, quantize
from relaxcomm.primitives.compressors.random_k import random_k
from relaxcomm.primitives.compressors.sign import sign
from relaxcomm.primitives.compressors.switch import switch
from relaxcomm.primitives.compressors.top_k import top_k
from relaxcomm.primitives.compressors.unbiased_quantizers import qsgd, terngrad

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

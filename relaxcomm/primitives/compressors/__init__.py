"""Compressors: how a tensor is encoded."""

from relaxcomm.primitives.compressors.adaptive_top_k import adaptive_top_k
from relaxcomm.primitives.compressors.cast import cast
from relaxcomm.primitives.compressors.chain import chain
from relaxcomm.primitives.compressors.chunk_top_k import chunk_top_k
from relaxcomm.primitives.compressors.count_sketch import count_sketch
from relaxcomm.primitives.compressors.dct_top_k import dct_top_k
from relaxcomm.primitives.compressors.dgc import dgc
from relaxcomm.primitives.compressors.ef21 import ef21
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.compressors.gaussian_k import gaussian_k
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.momentum_correction import momentum_correction
from relaxcomm.primitives.compressors.power_sgd import power_sgd
from relaxcomm.primitives.compressors.qsgd import qsgd
from relaxcomm.primitives.compressors.quantize import minmax_uint8, quantize
from relaxcomm.primitives.compressors.random_k import random_k
from relaxcomm.primitives.compressors.sign import sign
from relaxcomm.primitives.compressors.switch import switch
from relaxcomm.primitives.compressors.terngrad import terngrad
from relaxcomm.primitives.compressors.top_k import top_k

__all__ = [
    "adaptive_top_k",
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
    "power_sgd",
    "qsgd",
    "quantize",
    "random_k",
    "sign",
    "switch",
    "terngrad",
    "top_k",
]

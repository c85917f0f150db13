"""Every primitive, topology and partition, by its name in YAML: what compositions are made of."""

from relaxcomm.data.partitions import (
    by_label as by_label,
    dirichlet as dirichlet,
    disjoint as disjoint,
    iid as iid,
    seldp as seldp,
)
from relaxcomm.fields.schedules import piecewise as piecewise
from relaxcomm.primitives.compressors.adaptive_top_k import adaptive_top_k as adaptive_top_k
from relaxcomm.primitives.compressors.cast import cast as cast
from relaxcomm.primitives.compressors.chain import chain as chain
from relaxcomm.primitives.compressors.chunk_top_k import chunk_top_k as chunk_top_k
from relaxcomm.primitives.compressors.clip_norm import clip_norm as clip_norm
from relaxcomm.primitives.compressors.count_sketch import count_sketch as count_sketch
from relaxcomm.primitives.compressors.dct_top_k import dct_top_k as dct_top_k
from relaxcomm.primitives.compressors.dgc import dgc as dgc
from relaxcomm.primitives.compressors.ef21 import ef21 as ef21
from relaxcomm.primitives.compressors.error_feedback import error_feedback as error_feedback
from relaxcomm.primitives.compressors.gaussian_k import gaussian_k as gaussian_k
from relaxcomm.primitives.compressors.identity import identity as identity
from relaxcomm.primitives.compressors.momentum_correction import momentum_correction as momentum_correction
from relaxcomm.primitives.compressors.power_sgd import power_sgd as power_sgd
from relaxcomm.primitives.compressors.qsgd import qsgd as qsgd
from relaxcomm.primitives.compressors.quantize import minmax_uint8 as minmax_uint8, quantize as quantize
from relaxcomm.primitives.compressors.random_k import random_k as random_k
from relaxcomm.primitives.compressors.sign import sign as sign
from relaxcomm.primitives.compressors.switch import switch as switch
from relaxcomm.primitives.compressors.terngrad import terngrad as terngrad
from relaxcomm.primitives.compressors.top_k import top_k as top_k
from relaxcomm.primitives.controllers.norm_test import (
    norm_test as norm_test,
    sample_norm_test as sample_norm_test,
)
from relaxcomm.primitives.exchanges.all_gather import all_gather as all_gather
from relaxcomm.primitives.exchanges.all_reduce import all_reduce as all_reduce
from relaxcomm.primitives.exchanges.averaging_server import averaging_server as averaging_server
from relaxcomm.primitives.exchanges.compressed_gossip import (
    choco_gossip as choco_gossip,
    dcd_gossip as dcd_gossip,
)
from relaxcomm.primitives.exchanges.exchange_for import exchange_for as exchange_for
from relaxcomm.primitives.exchanges.gossip import gossip as gossip
from relaxcomm.primitives.exchanges.hierarchical_all_reduce import (
    group_all_reduce as group_all_reduce,
    hierarchical_all_reduce as hierarchical_all_reduce,
)
from relaxcomm.primitives.exchanges.pairwise import pairwise as pairwise
from relaxcomm.primitives.exchanges.push_sum import push_sum as push_sum
from relaxcomm.primitives.exchanges.quorum_average import quorum_average as quorum_average
from relaxcomm.primitives.exchanges.robust_mean import (
    coordinate_median as coordinate_median,
    trimmed_mean as trimmed_mean,
)
from relaxcomm.primitives.exchanges.scatter_gather import scatter_gather as scatter_gather
from relaxcomm.primitives.exchanges.server import server as server
from relaxcomm.primitives.exchanges.vote import vote as vote
from relaxcomm.primitives.outers.average import average as average
from relaxcomm.primitives.outers.fedopt import adagrad as adagrad, adam as adam, yogi as yogi
from relaxcomm.primitives.outers.frozen_adam import frozen_adam as frozen_adam
from relaxcomm.primitives.outers.heloco import heloco as heloco
from relaxcomm.primitives.outers.observe import observe as observe
from relaxcomm.primitives.outers.sgd import nesterov as nesterov, sgd as sgd
from relaxcomm.primitives.outers.signs import signs as signs
from relaxcomm.primitives.outers.slowmo import slowmo as slowmo
from relaxcomm.primitives.payloads.client_deltas import client_deltas as client_deltas
from relaxcomm.primitives.payloads.deltas import deltas as deltas
from relaxcomm.primitives.payloads.elastic_difference import elastic_difference as elastic_difference
from relaxcomm.primitives.payloads.gradients import gradients as gradients
from relaxcomm.primitives.payloads.momentum import momentum as momentum
from relaxcomm.primitives.payloads.optimizer_state import optimizer_state as optimizer_state
from relaxcomm.primitives.payloads.parameters import parameters as parameters
from relaxcomm.primitives.payloads.slow_weights import slow_weights as slow_weights
from relaxcomm.primitives.triggers.every import every as every
from relaxcomm.primitives.triggers.every_round import every_round as every_round
from relaxcomm.primitives.triggers.every_step import every_step as every_step
from relaxcomm.primitives.triggers.relative_gradient_change import (
    relative_gradient_change as relative_gradient_change,
)
from relaxcomm.primitives.triggers.while_below import while_below as while_below
from relaxcomm.topology.custom import file as file
from relaxcomm.topology.exponential import (
    exponential as exponential,
    hypercube as hypercube,
    one_peer_exponential as one_peer_exponential,
)
from relaxcomm.topology.grouped import hierarchical as hierarchical
from relaxcomm.topology.random_graphs import (
    erdos_renyi as erdos_renyi,
    random_pairs as random_pairs,
    random_regular as random_regular,
)
from relaxcomm.topology.regular import (
    complete as complete,
    grid as grid,
    ring as ring,
    star as star,
    torus as torus,
)
from relaxcomm.topology.time_varying import in_turn as in_turn

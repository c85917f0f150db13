"""Modular communication for data-parallel PyTorch training over slow networks."""

from relaxcomm.checks import Finding, Rehearsal, check, rehearse, round_trip, trajectory
from relaxcomm.composition.algorithm import Algorithm, Rule
from relaxcomm.composition.planner import Chooser, Measured
from relaxcomm.engine import Engine, attach
from relaxcomm.errors import (
    CommunicationError,
    CompositionError,
    CompositionWarning,
    ConfigError,
    ConfigWarning,
    DeadlockError,
    DriftError,
    DriftWarning,
    MetricsWarning,
    NonFiniteError,
    PluginError,
    RelaxcommError,
    TopologyError,
    UsageError,
)
from relaxcomm.fields.frozen import Bits, Fraction, Index, Levels, Rate, Share, Steps, Threshold, frozen
from relaxcomm.fields.schedules import Density, ScheduledBits, piecewise
from relaxcomm.integrations.ddp import ddp_hook
from relaxcomm.network import InProcessGroup, Link, Service, simulate
from relaxcomm.network.operations import Agree, AllGather, AllReduce, AllToAll, Broadcast, Neighbors, Request
from relaxcomm.primitives.compressors import (
    adaptive_top_k,
    cast,
    chain,
    chunk_top_k,
    count_sketch,
    dct_top_k,
    dgc,
    ef21,
    error_feedback,
    gaussian_k,
    identity,
    minmax_uint8,
    momentum_correction,
    power_sgd,
    qsgd,
    quantize,
    random_k,
    sign,
    switch,
    terngrad,
    top_k,
)
from relaxcomm.primitives.controllers.norm_test import norm_test, sample_norm_test
from relaxcomm.primitives.exchanges.all_gather import all_gather
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.averaging_server import averaging_server
from relaxcomm.primitives.exchanges.compressed_gossip import choco_gossip, dcd_gossip
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.primitives.exchanges.gossip import gossip
from relaxcomm.primitives.exchanges.hierarchical_all_reduce import group_all_reduce, hierarchical_all_reduce
from relaxcomm.primitives.exchanges.pairwise import pairwise
from relaxcomm.primitives.exchanges.push_sum import push_sum
from relaxcomm.primitives.exchanges.scatter_gather import scatter_gather
from relaxcomm.primitives.exchanges.server import Staleness, server
from relaxcomm.primitives.exchanges.vote import vote
from relaxcomm.primitives.outers.average import average
from relaxcomm.primitives.outers.fedopt import adagrad, adam, yogi
from relaxcomm.primitives.outers.frozen_adam import frozen_adam
from relaxcomm.primitives.outers.observe import observe
from relaxcomm.primitives.outers.sgd import nesterov, sgd
from relaxcomm.primitives.outers.signs import signs
from relaxcomm.primitives.outers.slowmo import slowmo
from relaxcomm.primitives.payloads.client_deltas import client_deltas
from relaxcomm.primitives.payloads.deltas import deltas
from relaxcomm.primitives.payloads.gradients import gradients
from relaxcomm.primitives.payloads.momentum import momentum
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.primitives.triggers.every import every
from relaxcomm.primitives.triggers.every_round import every_round
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.primitives.triggers.relative_gradient_change import relative_gradient_change
from relaxcomm.primitives.triggers.while_below import while_below
from relaxcomm.roles import (
    RELAXCOMM_PROTOCOL,
    Agreement,
    Coding,
    Compressor,
    Context,
    Controller,
    Exchange,
    Exchanging,
    MicroGradients,
    Observation,
    Outer,
    Parts,
    Payload,
    Seen,
    Served,
    State,
    Trigger,
    VotingTrigger,
)
from relaxcomm.tensors.bit_packing import (
    pack_codes,
    pack_places,
    packed_bytes,
    places_bytes,
    unpack_codes,
    unpack_places,
)
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import (
    DENSE,
    MAXIMUM,
    MIXED,
    QUANTIZED,
    SHARED_SUPPORT,
    SIGNS,
    SPARSE,
    Dense,
    Maximum,
    Message,
    Quantized,
    SharedSupport,
    Signs,
    Sparse,
)
from relaxcomm.tensors.segments import Segments
from relaxcomm.topology import Topology, from_networkx

__all__ = [
    "DENSE",
    "MAXIMUM",
    "MIXED",
    "QUANTIZED",
    "RELAXCOMM_PROTOCOL",
    "SHARED_SUPPORT",
    "SIGNS",
    "SPARSE",
    "Agree",
    "Agreement",
    "Algorithm",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Bits",
    "Broadcast",
    "Bucket",
    "Chooser",
    "Coding",
    "CommunicationError",
    "CompositionError",
    "CompositionWarning",
    "Compressor",
    "ConfigError",
    "ConfigWarning",
    "Context",
    "Controller",
    "DeadlockError",
    "Dense",
    "Density",
    "DriftError",
    "DriftWarning",
    "Engine",
    "Exchange",
    "Exchanging",
    "Finding",
    "Fraction",
    "InProcessGroup",
    "Index",
    "Levels",
    "Link",
    "Maximum",
    "Measured",
    "Message",
    "MetricsWarning",
    "MicroGradients",
    "Neighbors",
    "NonFiniteError",
    "Observation",
    "Outer",
    "Parts",
    "Payload",
    "PluginError",
    "Quantized",
    "Rate",
    "Rehearsal",
    "RelaxcommError",
    "Request",
    "Rule",
    "ScheduledBits",
    "Seen",
    "Segments",
    "Served",
    "Service",
    "Share",
    "SharedSupport",
    "Signs",
    "Sparse",
    "Staleness",
    "State",
    "Steps",
    "Threshold",
    "Topology",
    "TopologyError",
    "Trigger",
    "UsageError",
    "VotingTrigger",
    "adagrad",
    "adam",
    "adaptive_top_k",
    "all_gather",
    "all_reduce",
    "attach",
    "average",
    "averaging_server",
    "cast",
    "chain",
    "check",
    "choco_gossip",
    "chunk_top_k",
    "client_deltas",
    "count_sketch",
    "dcd_gossip",
    "dct_top_k",
    "ddp_hook",
    "deltas",
    "dgc",
    "ef21",
    "error_feedback",
    "every",
    "every_round",
    "every_step",
    "exchange_for",
    "from_networkx",
    "frozen",
    "frozen_adam",
    "gaussian_k",
    "gossip",
    "gradients",
    "group_all_reduce",
    "hierarchical_all_reduce",
    "identity",
    "minmax_uint8",
    "momentum",
    "momentum_correction",
    "nesterov",
    "norm_test",
    "observe",
    "pack_codes",
    "pack_places",
    "packed_bytes",
    "pairwise",
    "parameters",
    "piecewise",
    "places_bytes",
    "power_sgd",
    "push_sum",
    "qsgd",
    "quantize",
    "random_k",
    "rehearse",
    "relative_gradient_change",
    "round_trip",
    "sample_norm_test",
    "scatter_gather",
    "server",
    "sgd",
    "sign",
    "signs",
    "simulate",
    "slowmo",
    "switch",
    "terngrad",
    "top_k",
    "trajectory",
    "unpack_codes",
    "unpack_places",
    "vote",
    "while_below",
    "yogi",
]

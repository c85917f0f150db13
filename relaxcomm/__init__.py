"""Modular communication for data-parallel PyTorch training over slow networks."""

from relaxcomm.algorithm import Algorithm, Rule
from relaxcomm.buckets import Bucket
from relaxcomm.engine import Engine, attach
from relaxcomm.errors import (
    CommunicationError,
    CompositionError,
    ConfigError,
    DeadlockError,
    NonFiniteError,
    PluginError,
    RelaxcommError,
    TopologyError,
    UsageError,
)
from relaxcomm.frozen import Fraction, Index, Rate, Share, Steps, Threshold, frozen
from relaxcomm.messages import Dense, Message
from relaxcomm.operations import Agree, AllGather, AllReduce, AllToAll, Broadcast, Neighbors, Request
from relaxcomm.primitives.compressors import cast, identity
from relaxcomm.primitives.controllers import norm_test, sample_norm_test
from relaxcomm.primitives.exchanges import all_reduce, gossip
from relaxcomm.primitives.hierarchy import group_all_reduce, hierarchical_all_reduce
from relaxcomm.primitives.outers import average, nesterov, observe, sgd, slowmo
from relaxcomm.primitives.payloads import deltas, gradients, parameters
from relaxcomm.primitives.server import Staleness, server
from relaxcomm.primitives.triggers import every, every_step, relative_gradient_change, while_below
from relaxcomm.protocol import (
    Agreement,
    Compressor,
    Context,
    Controller,
    Exchange,
    MicroGradients,
    Observation,
    Outer,
    Payload,
    Seen,
    Served,
    Trigger,
    VotingTrigger,
)
from relaxcomm.topology import Topology, from_networkx
from relaxcomm.transport import InProcessGroup, Link, Service, simulate

__all__ = [
    "Agree",
    "Agreement",
    "Algorithm",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "Bucket",
    "CommunicationError",
    "CompositionError",
    "Compressor",
    "ConfigError",
    "Context",
    "Controller",
    "DeadlockError",
    "Dense",
    "Engine",
    "Exchange",
    "Fraction",
    "InProcessGroup",
    "Index",
    "Link",
    "Message",
    "MicroGradients",
    "Neighbors",
    "NonFiniteError",
    "Observation",
    "Outer",
    "Payload",
    "PluginError",
    "Rate",
    "RelaxcommError",
    "Request",
    "Rule",
    "Seen",
    "Served",
    "Service",
    "Share",
    "Staleness",
    "Steps",
    "Threshold",
    "Topology",
    "TopologyError",
    "Trigger",
    "UsageError",
    "VotingTrigger",
    "all_reduce",
    "attach",
    "average",
    "cast",
    "deltas",
    "every",
    "every_step",
    "from_networkx",
    "frozen",
    "gossip",
    "gradients",
    "group_all_reduce",
    "hierarchical_all_reduce",
    "identity",
    "nesterov",
    "norm_test",
    "observe",
    "parameters",
    "relative_gradient_change",
    "sample_norm_test",
    "server",
    "sgd",
    "simulate",
    "slowmo",
    "while_below",
]

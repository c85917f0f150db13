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
from relaxcomm.frozen import Fraction, Rate, Share, Steps, Threshold, frozen
from relaxcomm.messages import Dense, Message
from relaxcomm.operations import Agree, AllGather, AllReduce, AllToAll, Broadcast, Neighbors
from relaxcomm.primitives.compressors import cast, identity
from relaxcomm.primitives.exchanges import all_reduce
from relaxcomm.primitives.outers import average, nesterov, sgd, slowmo
from relaxcomm.primitives.payloads import deltas, gradients, parameters
from relaxcomm.primitives.triggers import every, every_step, relative_gradient_change
from relaxcomm.protocol import (
    Agreement,
    Compressor,
    Context,
    Exchange,
    Observation,
    Outer,
    Payload,
    Trigger,
    VotingTrigger,
)
from relaxcomm.transport import InProcessGroup, Link, simulate

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
    "DeadlockError",
    "Dense",
    "Engine",
    "Exchange",
    "Fraction",
    "InProcessGroup",
    "Link",
    "Message",
    "Neighbors",
    "NonFiniteError",
    "Observation",
    "Outer",
    "Payload",
    "PluginError",
    "Rate",
    "RelaxcommError",
    "Rule",
    "Share",
    "Steps",
    "Threshold",
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
    "frozen",
    "gradients",
    "identity",
    "nesterov",
    "parameters",
    "relative_gradient_change",
    "sgd",
    "simulate",
    "slowmo",
]

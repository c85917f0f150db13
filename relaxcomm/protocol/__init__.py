"""What a primitive is: the roles in a rule, free of I/O, and what they see of the run.

Primitives are frozen and stateless. Their state lives in slots that the engine keeps per rule and
bucket, made by `init` and checkpointed by the engine. Exchanges and compressors are generators:
a compressor yields messages to the exchange, an exchange yields operations to the engine.
"""

from relaxcomm.protocol.base import Context, Primitive, State, is_buffer
from relaxcomm.protocol.choosers import Chooser, Measured
from relaxcomm.protocol.compressors import Coding, Compressor, Parts
from relaxcomm.protocol.controllers import Controller, MicroGradients, Seen
from relaxcomm.protocol.exchanges import Exchange, Exchanging, Served
from relaxcomm.protocol.outers import Outer
from relaxcomm.protocol.payloads import Payload
from relaxcomm.protocol.triggers import Agreement, Observation, Trigger, VotingTrigger, agreed

RELAXCOMM_PROTOCOL = 1
"""Version of what plug-ins build on; a plug-in says in its package for which one it was written."""

__all__ = [
    "RELAXCOMM_PROTOCOL",
    "Agreement",
    "Chooser",
    "Coding",
    "Compressor",
    "Context",
    "Controller",
    "Exchange",
    "Exchanging",
    "Measured",
    "MicroGradients",
    "Observation",
    "Outer",
    "Parts",
    "Payload",
    "Primitive",
    "Seen",
    "Served",
    "State",
    "Trigger",
    "VotingTrigger",
    "agreed",
    "is_buffer",
]

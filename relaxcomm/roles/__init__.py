"""What a primitive is: the roles in a rule, free of I/O, and what they see of the run.

Primitives are frozen and stateless. Their state lives in slots that the engine keeps per rule and
bucket, made by `init` and checkpointed by the engine. Exchanges and compressors are generators:
a compressor yields messages to the exchange, an exchange yields operations to the engine.
"""

from relaxcomm.roles.compressor import Coding, Compressor, CompressorFacts, Parts
from relaxcomm.roles.context import Context, Primitive, State, is_buffer
from relaxcomm.roles.controller import Controller, ControllerFacts, ExchangedBucket, MicroGradients
from relaxcomm.roles.exchange import Exchange, ExchangeFacts, Exchanging, Served
from relaxcomm.roles.outer import Outer, OuterFacts
from relaxcomm.roles.payload import Payload, PayloadFacts
from relaxcomm.roles.stage import Awaited, Stage
from relaxcomm.roles.trigger import Agreement, Observation, Trigger, TriggerFacts, VotingTrigger, agreed

RELAXCOMM_PROTOCOL = 2
"""Version of what plug-ins build on; a plug-in says in its package for which one it was written."""

__all__ = [
    "RELAXCOMM_PROTOCOL",
    "Agreement",
    "Awaited",
    "Coding",
    "Compressor",
    "CompressorFacts",
    "Context",
    "Controller",
    "ControllerFacts",
    "Exchange",
    "ExchangeFacts",
    "ExchangedBucket",
    "Exchanging",
    "MicroGradients",
    "Observation",
    "Outer",
    "OuterFacts",
    "Parts",
    "Payload",
    "PayloadFacts",
    "Primitive",
    "Served",
    "Stage",
    "State",
    "Trigger",
    "TriggerFacts",
    "VotingTrigger",
    "agreed",
    "is_buffer",
]

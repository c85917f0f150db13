"""Networks: torch.distributed, and N ranks in one process for tests."""

from relaxcomm.transport.base import ByteCounters, Membership, Pending, Service, Transport
from relaxcomm.transport.in_process import InProcessGroup, simulate, single
from relaxcomm.transport.link import Link, parse_link, parse_rate
from relaxcomm.transport.throttle import Throttle, ThrottledTransport
from relaxcomm.transport.torch_distributed import TorchTransport

__all__ = [
    "ByteCounters",
    "InProcessGroup",
    "Link",
    "Membership",
    "Pending",
    "Service",
    "Throttle",
    "ThrottledTransport",
    "TorchTransport",
    "Transport",
    "parse_link",
    "parse_rate",
    "simulate",
    "single",
]

"""Networks: torch.distributed, and N ranks in one process for tests."""

from relaxcomm.network.in_process import InProcessGroup, simulate, single
from relaxcomm.network.link import Link, parse_link, parse_rate
from relaxcomm.network.throttle import Throttle, ThrottledTransport
from relaxcomm.network.torch_distributed import TorchTransport
from relaxcomm.network.transport import Service, Transport

__all__ = [
    "InProcessGroup",
    "Link",
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

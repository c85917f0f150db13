"""What a configuration may say about metrics."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import Field

from relaxcomm.fields.frozen import Section
from relaxcomm.system.environment import LAST_PORT

DEFAULT_PORT = 9400
EVERYWHERE = ("0.0.0.0", "::")
"""Addresses at which something listens at all of a host's."""
Text = Annotated[str, Field(min_length=1, max_length=200)]


class MetricsConfig(Section):
    """Where each rank's metrics can be read, for Prometheus and `relaxcomm top`.

    Args:
        port: of the first rank on a host, the next one takes the next; 0 lets the system choose. A port
            that is taken is replaced by one that the system chooses, with a warning. None for a log only.
        address: what the exporters are bound to; "0.0.0.0" lets other hosts read them.
        run: value of the label `run`, and name of the log; None for the algorithm's name and the launcher's
            run id, or the time and some letters. `relaxcomm compare` puts each algorithm's name behind it.
        log: whether each rank writes lines of its synchronisations and evaluations to the folder `output`,
            if there is one.
        log_bytes: size that a rank's log stays below: when it is full, every second line goes, and half as
            many are written from then on.
    """

    port: Annotated[int, Field(ge=0, le=LAST_PORT)] | None = DEFAULT_PORT
    address: Text = "127.0.0.1"
    run: Text | None = None
    log: bool = True
    log_bytes: Annotated[int, Field(ge=16_384)] = 16_777_216

    @property
    def is_local(self) -> bool:
        """Whether only this host can read them."""
        if self.address == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return False

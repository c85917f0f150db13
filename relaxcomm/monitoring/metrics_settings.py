"""What a configuration may say about metrics."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Annotated

from pydantic import Field

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Section

Text = Annotated[str, Field(min_length=1)]


class TLS(Section):
    """Encryption of the exporters.

    Args:
        certificate: PEM file with the certificate, and with those that vouch for it.
        key: PEM file with its private key.
        client_ca: PEM file; only clients that show a certificate signed by it are answered.
    """

    certificate: Text
    key: Text
    client_ca: Text | None = None

    def context(self) -> ssl.SSLContext:
        """What a server needs.

        Raises: ConfigError for files that cannot be read or do not belong together.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"metrics.tls: {error}; certificate, key and client_ca name PEM files, and the key belongs "
                "to the certificate"
            ) from None
        return context


class BasicAuth(Section):
    """Who may read the metrics.

    Args:
        username: without a colon.
        password_file: text file that holds the password, so that no configuration or result shows it.
    """

    username: Annotated[str, Field(pattern=r"^[^:]+$")]
    password_file: Text

    def password(self) -> str:
        """The password.

        Raises: ConfigError if there is none.
        """
        try:
            text = Path(self.password_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"metrics.basic_auth.password_file: {error}") from None
        if not text:
            raise ConfigError(f"metrics.basic_auth.password_file: {self.password_file} is empty")
        return text


class MetricsConfig(Section):
    """Where each rank's metrics can be read, for Prometheus and `relaxcomm top`.

    Args:
        port: of the first rank on a host, the next one takes the next; 0 lets the system choose. A port
            that is taken is replaced by one that the system chooses, with a warning. None for a log only.
        address: what the exporters are bound to; "0.0.0.0" lets other hosts read them.
        run: value of the label `run`; None for the algorithm's name and the launcher's run id, or the time.
        tls: encryption, or None.
        basic_auth: who may read them, or None for everybody who can reach the port.
        log: whether each rank writes lines of its synchronisations and evaluations to the folder `output`,
            if there is one.
        log_bytes: size that a rank's log stays below: when it is full, every second line goes, and half as
            many are written from then on.
    """

    port: Annotated[int, Field(ge=0, le=65535)] | None = 9400
    address: Text = "127.0.0.1"
    run: Text | None = None
    tls: TLS | None = None
    basic_auth: BasicAuth | None = None
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

    def check_files(self) -> None:
        """Look at the files that are named.

        Raises: ConfigError.
        """
        if self.tls is not None:
            self.tls.context()
        if self.basic_auth is not None:
            self.basic_auth.password()

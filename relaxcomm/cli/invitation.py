"""What `relaxcomm train` leaves in the store of an elastic run for those that `relaxcomm join` it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # documented

from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.fields.validation import shown
from relaxcomm.network import elastic_store
from relaxcomm.network.store_client import no_frames, store_at
from relaxcomm.network.store_server import serve_store
from relaxcomm.system.network_interface import first_address, is_only_here, use_interface_of
from relaxcomm.system.tcp import before_port, connect, named_as_hosts_are, split_address

_CONFIGURATION, _ENDED = "relaxcomm/configuration", "relaxcomm/ended"
_SECONDS = 5.0
_WHERE = "give the HOST:PORT that `relaxcomm train` has printed"


def listen(address: str) -> tuple[TCPStore, str]:
    """A store that this process holds, and its HOST:PORT; it listens at that address alone.

    Args:
        address: HOST, for a free port, or HOST:PORT.

    Raises: ConfigError for one where it cannot listen.
    """
    is_host = ":" not in address or address.endswith("]")
    host, port = (address.strip("[]"), 0) if is_host else split_address(address)
    try:
        if is_only_here(host):
            raise ConfigError(
                f"--address {shown(address)}: that name is {first_address(host)} on this machine, which no "
                "other reaches; give the address that this machine has in their network"
            )
        with named_as_hosts_are():
            store = serve_store(host, port)
    except OSError as error:
        raise ConfigError(
            f"--address {shown(address)}: cannot listen there ({error.strerror or error}); give an "
            "address of this machine that the others reach, as HOST or HOST:PORT"
        ) from None
    return store, f"{before_port(host)}:{store.port}"


def invite(store: Any, configuration: Mapping[str, Any]) -> None:
    """Say what is trained."""
    store.set(_CONFIGURATION, json.dumps(configuration))


def end(store: Any) -> None:
    """Say that nobody trains any more."""
    store.set(_ENDED, "")


def await_begin(store: Any, address: str, seconds: float) -> None:
    """Wait until the workers of a run have met, so that they can admit others.

    Raises: ConfigError for a run that has ended, or does not begin in time.
    """
    if _has(store, _ENDED, address):
        raise ConfigError(f"the run at {address} has ended")
    try:
        elastic_store.find(store, address, seconds)
    except CommunicationError as error:
        raise ConfigError(str(error)) from None


def reach(address: str) -> Any:
    """The store of a run; from now on Gloo listens where that store reaches this host.

    Raises: ConfigError for an address at which there is none.
    """
    host, port = split_address(address)
    try:
        with connect(host, port, _SECONDS) as connection:
            use_interface_of(connection.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"nobody answers at {address} ({error.strerror or error}): the run has ended, or the address is "
            f"another; {_WHERE}"
        ) from None
    store = store_at(host, port, 2 * _SECONDS)
    if store is None:
        raise ConfigError(f"what answers at {address} is not the store of a run; {_WHERE}")
    return store


def configuration_in(store: Any, address: str) -> dict[str, Any]:
    """What is trained.

    Raises: ConfigError for a run that `relaxcomm train` has not started, or that nobody can join.
    """
    if not _has(store, _CONFIGURATION, address):
        raise ConfigError(
            f"the run at {address} has left no configuration: `relaxcomm train` has not started it, or "
            "without membership: {elastic: true}; with a script of your own: "
            f"relaxcomm join {address} -- python script.py"
        )
    found: dict[str, Any] = json.loads(store.get(_CONFIGURATION))
    return found


def _has(store: Any, key: str, address: str) -> bool:
    """Whether a key is set.

    Raises: ConfigError for a run that has ended.
    """
    try:
        with no_frames():
            return bool(store.check([key]))
    except DistError:
        raise ConfigError(f"the run at {address} has ended") from None

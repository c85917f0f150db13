"""Interfaces, the one that gloo takes, the host's name, and the master's port."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import psutil

from relaxcomm.doctor.diagnosis import Finding, Level, ok
from relaxcomm.errors import ConfigError
from relaxcomm.network.default_group import is_hidden
from relaxcomm.system.environment import LAST_PORT
from relaxcomm.system.network_interface import address_towards, interface_of, resolve

_DEFAULT_PORT = 29500
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def findings() -> list[Finding]:
    """What this machine's network looks like."""
    return [*_interfaces(), *_gloo(), *_master()]


def addresses() -> dict[str, list[str]]:
    """IP addresses by interface, of interfaces that are up."""
    states = psutil.net_if_stats()
    return {
        name: [one.address.partition("%")[0] for one in found if one.family in _FAMILIES]
        for name, found in psutil.net_if_addrs().items()
        if name in states and states[name].isup
    }


def _interfaces() -> Iterator[Finding]:
    states = psutil.net_if_stats()
    for name, found in addresses().items():
        if found:
            speed = f", {states[name].speed} Mbit/s" if states[name].speed else ""
            yield ok("interface", f"{name}: {', '.join(found)} (mtu {states[name].mtu}{speed})")


def gloo_address() -> tuple[str, str]:
    """The interface that gloo takes and its address, chosen as attach() and gloo do.

    The first of `GLOO_SOCKET_IFNAME`, else the one from which this host reaches `MASTER_ADDR`, else the one
    whose address the host's name resolves to, else the loopback; an interface or address that is not there
    is "".
    """
    known = addresses()
    wanted = os.environ.get("GLOO_SOCKET_IFNAME") or _towards_master()
    if wanted:
        name = wanted.split(",")[0]
        return name, next(iter(known.get(name, [])), "")
    for address in resolve(socket.gethostname()):
        for name, found in known.items():
            if address in found:
                return name, address
    loopback = [(name, one) for name, found in known.items() for one in found if is_loopback(one)]
    return loopback[0] if loopback else ("", "")


def _towards_master() -> str | None:
    """The interface that attach() has gloo take."""
    host = os.environ.get("MASTER_ADDR", "")
    address = address_towards(host) if resolve(host) else None
    return None if address is None else interface_of(address)


def on_one_host() -> bool:
    """Whether a launcher says that all workers are on this host."""
    return os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE")


def is_loopback(address: str) -> bool:
    """Whether an address reaches this machine alone."""
    return ipaddress.ip_address(address).is_loopback


def is_told_by_others() -> bool:
    """Whether gloo takes the address that MASTER_ADDR has for the others, since here it is a loopback."""
    host = os.environ.get("MASTER_ADDR", "")
    with suppress(ConfigError):  # of variables that no launcher sets so, which another finding tells
        return "GLOO_SOCKET_IFNAME" not in os.environ and is_hidden(host)
    return False


def _gloo() -> Iterator[Finding]:
    host = socket.gethostname()
    resolved = resolve(host)
    yield ok("hostname", f"{host} resolves to {', '.join(resolved) or 'nothing'}")
    if is_told_by_others():
        yield ok("gloo", "takes the address of MASTER_ADDR that others tell: here that name is a loopback")
        return
    wanted = os.environ.get("GLOO_SOCKET_IFNAME")
    name, address = gloo_address()
    known = addresses()
    if not address:
        text = (
            f"GLOO_SOCKET_IFNAME={wanted}: {name} is not up or has no address"
            if wanted
            else "no interface is up"
        )
        yield Finding("gloo", "problem", text, f"name one of {', '.join(one for one in known if known[one])}")
        return
    named = "the host's name" if resolved else "nothing better"
    reason = "GLOO_SOCKET_IFNAME" if wanted else "the way to MASTER_ADDR" if _towards_master() else named
    text = f"takes {name}, {address}, because of {reason}"
    others = [one for one, found in known.items() if any(not is_loopback(it) for it in found)]
    if is_loopback(address) and others and not on_one_host():
        remedy = f"for several: export GLOO_SOCKET_IFNAME={others[0]} on each, or correct /etc/hosts"
        yield Finding("gloo", "warning", f"{text}: right on one host, wrong on several", remedy)
    else:
        yield ok("gloo", text)


def _master() -> Iterator[Finding]:
    host = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT", str(_DEFAULT_PORT))
    if host is not None and not resolve(host):
        yield Finding(
            "master", "problem", f"MASTER_ADDR={host} is not known", "correct the name, or give an IP address"
        )
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's own agent holds the port
        yield ok("master", f"{host}:{port}, held by torchrun")
        return
    is_port = port.isdecimal() and int(port) <= LAST_PORT
    if not is_port or os.environ.get("RANK", "0") != "0":  # which is told of the environment
        return
    if _is_free(int(port)):
        yield ok("master", f"port {port} is free")
        return
    level: Level = "warning" if host is None else "problem"
    remedy = "choose another: MASTER_PORT, or torchrun's --master-port or --rdzv-endpoint"
    yield Finding("master", level, f"port {port} is taken on this machine", remedy)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

"""The workers meet within a time limit, compare what they are, and measure their links."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from relaxcomm.doctor import interfaces, link_speed, machine
from relaxcomm.doctor.diagnosis import Finding, Level, ok
from relaxcomm.system.environment import attempt_in_store, launcher_holds_store
from relaxcomm.system.network_interface import address_towards, first_address, resolve, use_interface_of
from relaxcomm.system.tcp import connect_within
from relaxcomm.system.time_limit import within

_POLL_SECONDS = 0.1
_LOOPBACK = "127.0.0.1"
_GOODBYE_SECONDS = 5.0


def findings(local: Sequence[Finding], timeout_seconds: float) -> list[Finding]:
    """What the workers are to each other; the same question on every rank, answered on each.

    Args:
        local: what this rank found of its machine; rank 0 hears what is not well on the others.
        timeout_seconds: the longest that each of reaching the master, meeting all and measuring takes.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    by_agent = launcher_holds_store()
    hosts_store = rank == 0 and not by_agent
    if not hosts_store and not _answers(host, port, timeout_seconds):
        text = f"rank {rank} cannot reach {host}:{port} within {timeout_seconds:g} s"
        remedy = "is rank 0 started, and may the port pass the firewall?"
        if not interfaces.on_one_host() and any(map(interfaces.is_loopback, resolve(host))):
            remedy = "that is this host: start torchrun on rank 0's with --local-addr, its address for others"
        return [Finding("master", "problem", text, remedy)]
    is_told = interfaces.is_told_by_others()
    if not is_told:
        use_interface_of(address_towards(host))  # as attach() does
    try:
        store = within(
            timeout_seconds, lambda: _store(host, port, hosts=hosts_store, seconds=timeout_seconds)
        )
        # Reaching all, measuring and parting have limits of their own; this one is for a host that vanishes.
        return within(
            3 * timeout_seconds + _GOODBYE_SECONDS,
            lambda: _meet(
                store, rank, _report(local, is_told=is_told), world_size, timeout_seconds, stays=hosts_store
            ),
        )
    except (RuntimeError, TimeoutError) as error:
        text = f"the store at {host}:{port} failed rank {rank}: {str(error).splitlines()[0]}"
        return [
            Finding(
                "master", "problem", text, "does rank 0 still run, or does another program hold that port?"
            )
        ]


def _store(host: str, port: int, *, hosts: bool, seconds: float) -> Any:
    limit = timedelta(seconds=seconds)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, though not exported by name
        host, port, None, hosts, timeout=limit, wait_for_workers=False, multi_tenant=True
    )
    return dist.distributed_c10d.PrefixStore(f"relaxcomm-doctor/{attempt_in_store()}", store)


def _meet(
    store: Any, rank: int, mine: Mapping[str, Any], world_size: int, seconds: float, *, stays: bool
) -> list[Finding]:
    """Report, hear the others, and measure if all are here; who hosts the store stays to the end."""
    store.set(f"report/{rank}", json.dumps(mine))
    reports = _wait_for(store, "report", range(world_size), seconds)
    master = next((one["master"] for one in reports.values() if one["master"]), _LOOPBACK)
    if not mine["master"]:
        use_interface_of(master)
    for one in reports.values():
        one["address"] = one["address"] or master
    meeting = _meeting(reports, world_size, seconds)
    found = [meeting, *_differences(reports), *_others(reports, rank)]
    if meeting.level == "ok":
        found += link_speed.findings(store, rank, world_size, seconds)
    store.set(f"done/{rank}", "true")
    if stays:
        _wait_for(store, "done", reports, _GOODBYE_SECONDS)
    return found


def _answers(host: str, port: int, timeout_seconds: float) -> bool:
    """Whether something listens there before the time is over."""
    try:
        connect_within(host, port, timeout_seconds).close()
    except OSError:
        return False
    return True


def _report(local: Sequence[Finding], *, is_told: bool) -> dict[str, Any]:
    """What the others hear: no address where they are the ones who know it."""
    return {
        "host": socket.gethostname(),
        "address": "" if is_told else interfaces.gloo_address()[1],
        "master": "" if is_told else first_address(os.environ["MASTER_ADDR"]),
        "versions": machine.versions(),
        "findings": [asdict(one) for one in local if one.level != "ok"],
    }


def _wait_for(
    store: Any, what: str, ranks: Sequence[int] | Mapping[int, Any], seconds: float
) -> dict[int, Any]:
    """What the ranks have set, as soon as all have, or when the time is over."""
    deadline, found = time.monotonic() + seconds, {}
    while True:
        for rank in ranks:
            if rank not in found and store.check([f"{what}/{rank}"]):
                found[rank] = json.loads(store.get(f"{what}/{rank}"))
        if len(found) == len(ranks) or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_SECONDS)


def _meeting(reports: Mapping[int, Any], world_size: int, seconds: float) -> Finding:
    """Whether all are here and may reach each other."""
    here = ", ".join(
        f"rank {rank} on {one['host']} ({one['address']})" for rank, one in sorted(reports.items())
    )
    missing = [str(rank) for rank in range(world_size) if rank not in reports]
    if missing:
        text = f"no word from rank {', '.join(missing)} within {seconds:g} s; here: {here}"
        remedy = "are they started, and can their hosts reach MASTER_ADDR and MASTER_PORT?"
        return Finding("workers", "problem", text, remedy)
    hosts = {one["host"] for one in reports.values()}
    if len(hosts) > 1 and any(interfaces.is_loopback(one["address"]) for one in reports.values()):
        remedy = "export GLOO_SOCKET_IFNAME on each host, or correct its name in /etc/hosts"
        return Finding("workers", "problem", f"an address that other hosts cannot reach: {here}", remedy)
    return ok("workers", here)


def _differences(reports: Mapping[int, Any]) -> Iterator[Finding]:
    """Versions that are not the same everywhere."""
    for name in machine.versions():
        by_version: dict[str, list[str]] = {}
        for rank, one in sorted(reports.items()):
            by_version.setdefault(one["versions"][name], []).append(str(rank))
        if len(by_version) > 1:
            text = "; ".join(f"{version} on rank {', '.join(ranks)}" for version, ranks in by_version.items())
            level: Level = "warning" if name == "python" else "problem"
            yield Finding(name, level, text, "install the same everywhere")


def _others(reports: Mapping[int, Any], rank: int) -> Iterator[Finding]:
    """What is not well on other ranks and was not said by this one."""
    said = {json.dumps(one) for one in reports.get(rank, {"findings": []})["findings"]}
    for other, report in sorted(reports.items()):
        for one in report["findings"]:
            if json.dumps(one) not in said:
                said.add(json.dumps(one))
                yield Finding(**{**one, "text": f"rank {other} on {report['host']}: {one['text']}"})

"""What could stand in the place of what does not fit."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from relaxcomm.roles import Compressor, Exchange


def neighbours(exchange: Exchange, compressor: Compressor) -> str:
    """What could stand in the place of one of two that do not fit, by what all that is known declares."""
    alike = ("collective", "same_result", "counts_votes", "uses_topology")
    exchanges = [
        one.__name__
        for one in _kinds_of(Exchange)
        if compressor.kinds <= one.accepts
        and all(getattr(one, fact) == getattr(exchange, fact) for fact in alike)
    ]
    compressors = [
        one.__name__
        for one in _kinds_of(Compressor)
        if isinstance(one.kinds, frozenset) and one.kinds <= exchange.accepts
    ]
    choices = [f"the exchange {listed(exchanges)}"] if exchanges else []
    choices += [f"a compressor such as {listed(compressors)}"] if compressors else []
    return f"use {', or '.join(choices)}" if choices else "nothing that is known fits either"


def _kinds_of(role: Any) -> list[Any]:
    """All complete classes of a role, plug-ins that were imported among them."""
    found = []
    for cls in role.__subclasses__():
        found += _kinds_of(cls)
        if not inspect.isabstract(cls) and cls.__name__.islower() and not cls.__name__.startswith("_"):
            found.append(cls)
    return found


def listed(names: Collection[str]) -> str:
    shown = sorted(set(names))
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)

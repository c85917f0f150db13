"""What could stand in the place of what does not fit, by what all that is known declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from relaxcomm.fields.allowed import one_of
from relaxcomm.roles import Compressor, CompressorFacts, Exchange, ExchangeFacts

_PRIMITIVES = "relaxcomm.primitives."


def neighbours(exchange: Exchange, compressor: Compressor) -> str:
    """What could stand in the place of one of two that do not fit."""
    mine = exchange.facts
    exchanges = exchanges_that(
        lambda other: (
            compressor.facts.kinds <= other.accepts
            and (other.collective, other.same_result) == (mine.collective, mine.same_result)
            and (other.returns, other.topology) == (mine.returns, mine.topology)
        )
    )
    compressors = [
        name for name, facts in _known(Compressor, CompressorFacts).items() if facts.kinds <= mine.accepts
    ]
    choices = [f"the exchange {one_of(exchanges)}"] if exchanges else []
    choices += [f"a compressor such as {one_of(sorted(compressors))}"] if compressors else []
    return f"use {', or '.join(choices)}" if choices else "nothing that is known fits either"


def exchanges_that(fit: Callable[[ExchangeFacts], bool]) -> list[str]:
    """Names of the exchanges whose facts fit."""
    return sorted(name for name, facts in _known(Exchange, ExchangeFacts).items() if fit(facts))


def _known(role: Any, kind: type[Any]) -> dict[str, Any]:
    """The facts, by name, of all of a role that users can name and whose facts follow from no argument."""
    found: dict[str, Any] = {}
    for cls in role.__subclasses__():
        found |= _known(cls, kind)
        public = cls.__name__.islower() and not cls.__name__.startswith("_")
        for_trials = cls.__module__.startswith("relaxcomm.") and not cls.__module__.startswith(_PRIMITIVES)
        if public and not for_trials and not inspect.isabstract(cls) and isinstance(cls.facts, kind):
            found[cls.__name__] = cls.facts
    return found

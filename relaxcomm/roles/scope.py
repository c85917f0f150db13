"""How much of a model a compressor looks at."""

from __future__ import annotations

from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["entry", "tensor", "bucket", "model"]
"""How much is looked at to encode an entry, from the least to the most."""

_SCOPES: tuple[Scope, ...] = ("entry", "tensor", "bucket", "model")


def widest(*scopes: Scope) -> Scope:
    """The scope of compressors together.

    Example:
        >>> widest("entry", "model", "tensor")
        'model'
    """
    return max(scopes, key=_SCOPES.index)

"""Tensors of some names apart from the others."""

from __future__ import annotations

import fnmatch
from typing import Annotated

from pydantic import Field

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.by_tensor import ByTensor
from relaxcomm.roles import Compressor


@frozen
class by_name(ByTensor):
    """Code tensors whose names match one of the patterns with `matching`, all others with `others`.

    Args:
        names: names or patterns with `*` and `?`, such as `*.bias`.
        matching: for tensors with such names.
        others: for all others; it may be a `by_name` itself.

    Raises: CompositionError for compressors of several messages.

    Example:
        >>> by_name(names=("*.bias",), matching=identity(), others=quantize(bits=8))
        by_name(names=('*.bias',), matching=identity(), others=quantize(bits=8))
    """

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    matching: Compressor
    others: Compressor

    def __post_init__(self) -> None:
        self.check_both()

    @property
    def both(self) -> tuple[Compressor, Compressor]:
        return self.matching, self.others

    @property
    def plain(self) -> Compressor:
        return by_name(names=self.names, matching=self.matching.plain, others=self.others.plain)

    def choose(self, name: str, numel: int) -> int:
        return int(not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names))

"""Where the keys of a configuration stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from relaxcomm.errors import RelaxcommError

Key: TypeAlias = Sequence[int | str]
"""A place in a configuration: keys, and places in lists."""


@contextmanager
def below(*keys: int | str) -> Iterator[None]:
    """Have errors say that they are of these keys, or of what is below them.

    Example:
        >>> from relaxcomm import ConfigError
        >>> try:
        ...     with below("compressor"), below("top_k"):
        ...         raise ConfigError("a density is a fraction in (0, 1]")
        ... except ConfigError as error:
        ...     print(error.key)
        ('compressor', 'top_k')
    """
    try:
        yield
    except RelaxcommError as error:
        error.key = (*keys, *error.key)
        raise


@dataclass(frozen=True)
class Origin:
    """What errors call the place where a configuration's keys stand.

    Args:
        name: of the file, or of what else they come from.
        lines: of the keys that stand in a file.

    Example:
        >>> origin = Origin("job.yaml", {("data",): 2, ("data", "batch_size"): 3})
        >>> origin.at(("data", "batch_size")), origin.at(("data", "partition")), origin.at(("seed",))
        ('job.yaml: line 3', 'job.yaml: line 2', 'job.yaml')
    """

    name: str
    lines: Mapping[tuple[int | str, ...], int] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def at(self, key: Key) -> str:
        """The place of a key: its line, or of the nearest key around it that has one."""
        starts = (tuple(key[:end]) for end in range(len(key), 0, -1))
        line = next((self.lines[start] for start in starts if start in self.lines), None)
        return self.name if line is None else f"{self.name}: line {line}"

    @contextmanager
    def told(self, *key: int | str) -> Iterator[None]:
        """Have errors begin with the place of a key."""
        try:
            yield
        except RelaxcommError as error:
            raise type(error)(f"{self.at(key)}: {error}") from error

    def without(self, keys: Iterable[str]) -> Origin:
        """The same, when others have taken the place of dotted keys: no line is told of what they are in."""
        others = [key.split(".") for key in keys]
        lines = {
            key: line
            for key, line in self.lines.items()
            if not any([*map(str, key)][: len(other)] == other[: len(key)] for other in others)
        }
        return replace(self, lines=lines)

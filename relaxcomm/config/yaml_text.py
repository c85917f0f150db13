"""YAML as people write it: 1e-3 is a number, no key comes twice, and nothing is without end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from relaxcomm.config.extent import DEEPEST, check_extent, too_deep
from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import shown

_LONGEST_CHARACTERS = 131_072
_LONGEST_NUMBER = 100  # characters
_TAG = "tag:yaml.org,2002:"
_RESOLVED = ("bool", "float", "int", "null")
_TAGS = frozenset(f"{_TAG}{kind}" for kind in (*_RESOLVED, "str", "seq", "map", "merge"))

_TO_DO = {
    "'\\t'": "indent with spaces",
    "another document": "write each in a file of its own, and no second ---",
}
"""By what the parser says."""


def names_yaml(name: str) -> bool:
    """Whether a name is, by its ending, that of a YAML file."""
    return Path(name).suffix.lower() in (".yaml", ".yml")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the floats of YAML 1.2; its own are those of 1.1, where 1e-3 is text."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEEPEST:
            event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
            raise too_deep(_line(event))
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            self._check_tag(node)
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)  # before what is merged into it stands among its own
        return node

    def _check_tag(self, node: yaml.Node) -> None:
        kind = node.tag.removeprefix(_TAG)
        if node.tag not in _TAGS:
            raise ConfigError(
                f"{_line(node)}: the tag {shown(node.tag)} is not allowed; write text, a number, true, "
                "false, null, a list or a mapping"
            )
        if kind not in _RESOLVED:
            return
        reads_as = self.resolve(type(node), node.value, (True, False))  # type: ignore[no-untyped-call]  # as above
        if reads_as != node.tag:
            raise ConfigError(f"{_line(node)}: {_shown(node)} is no {kind}; leave the tag !!{kind} out")

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            if key_node.tag != f"{_TAG}str":
                is_tail = node.flow_style and not value_node.value  # as of {lr: 0,7}
                point = ", or write a decimal number with a point, such as 0.5" if is_tail else ""
                raise ConfigError(
                    f"{_line(key_node)}: a key is text, got {_shown(key_node)}; put it in quotes{point}"
                )
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in lines:
                raise ConfigError(
                    f"the key {shown(key)} stands in line {lines[key]} and in line {line}; keep one"
                )
            lines[key] = line

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """A whole number of 64 bits."""
        if re.fullmatch(r"[-+]?0[0-9_]+", node.value):
            raise ConfigError(
                f"{_line(node)}: {shown(node.value)} is octal to some and decimal to others; leave the first "
                "0 out, or put text in quotes"
            )
        try:
            number = self.construct_yaml_int(node) if len(node.value) <= _LONGEST_NUMBER else None
        except ValueError:  # 0x_
            number = None
        if number is None or not -(2**63) <= number < 2**63:
            raise ConfigError(f"{_line(node)}: {shown(node.value)} is no whole number of 64 bits")
        return int(number)

    def construct_finite(self, node: yaml.ScalarNode) -> float:
        """A number, or an infinity that is called so."""
        number = float(self.construct_yaml_float(node))
        if math.isnan(number) or (math.isinf(number) and "inf" not in node.value.lower()):
            raise ConfigError(
                f"{_line(node)}: {shown(node.value)} is no number that can be held; write .inf if meant"
            )
        return number


_Loader.add_constructor(f"{_TAG}int", _Loader.construct_integer)
_Loader.add_constructor(f"{_TAG}float", _Loader.construct_finite)
# Dates are text, as in YAML 1.2, and so are a lone "=" and 1:30, which is 90 in YAML 1.1.
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(f"(?!.*:){pattern.pattern}", pattern.flags))
        for tag, pattern in resolvers
        if tag in _TAGS
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _line(place: Any) -> str:
    return f"line {place.start_mark.line + 1}"


def _shown(node: yaml.Node) -> str:
    """What stands there; of a list or a mapping, which may repeat itself without end, only what it is."""
    if isinstance(node, yaml.ScalarNode):
        return shown(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _place(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _parts(node: Any) -> Iterator[Any]:
    """The nodes in a node; one that has several names comes as often."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


def _lines(node: Any, key: tuple[int | str, ...] = ()) -> Iterator[tuple[tuple[int | str, ...], int]]:
    """The lines of the keys, and of what lists hold."""
    inner: list[tuple[int | str, Any, Any]] = []
    if isinstance(node, yaml.MappingNode):
        inner = [(name.value, name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inner = [(index, value, value) for index, value in enumerate(node.value)]
    for part, place, value in inner:
        yield (*key, part), place.start_mark.line + 1
        yield from _lines(value, (*key, part))


def parse_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises: ConfigError for what is not YAML, says a key twice, or is too long, too deep or too much to be a
        configuration.

    Example:
        >>> parse_yaml("{lr: 1e-3, steps: 16}")
        {'lr': 0.001, 'steps': 16}
    """
    return parse_with_lines(text)[0]


def parse_with_lines(text: str) -> tuple[Any, dict[tuple[int | str, ...], int]]:
    """What a YAML text says, and in which line each key stands.

    Raises: as `parse_yaml`.
    """
    if len(text) > _LONGEST_CHARACTERS:
        raise ConfigError(f"a text of {len(text):,} characters; {_LONGEST_CHARACTERS:,} at most are read")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        check_extent(node, _parts)
        return (None, {}) if node is None else (loader.construct_document(node), dict(_lines(node)))
    except yaml.MarkedYAMLError as error:
        to_do = [advice for problem, advice in _TO_DO.items() if problem in (error.problem or "")]
        said = "; ".join([f"{_place(error.problem_mark)}{error.problem}", *to_do])
        raise ConfigError(f"not YAML: {said}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from None

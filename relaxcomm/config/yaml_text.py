"""YAML as people write it: numbers such as 1e-3 are numbers, and no key comes twice."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from relaxcomm.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the floats of YAML 1.2; its own are those of 1.1, where 1e-3 is text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node)
            line = key_node.start_mark.line + 1
            if key in lines:
                raise ConfigError(f"the key {key!r} stands in line {lines[key]} and in line {line}; keep one")
            lines[key] = line
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises: yaml.YAMLError; ConfigError for a key that comes twice.

    Example:
        >>> parse_yaml("{lr: 1e-3, steps: 16}")
        {'lr': 0.001, 'steps': 16}
    """
    return yaml.load(text, _Loader)  # a safe one

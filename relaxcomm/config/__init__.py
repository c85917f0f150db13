"""YAML to validated, frozen configuration."""

from relaxcomm.config.configuration import Config, load, load_values, read_values
from relaxcomm.config.sections import CheckpointConfig, DriftGuard, Phase
from relaxcomm.config.yaml_text import names_yaml, parse_yaml

__all__ = [
    "CheckpointConfig",
    "Config",
    "DriftGuard",
    "Phase",
    "load",
    "load_values",
    "names_yaml",
    "parse_yaml",
    "read_values",
]

"""YAML to validated, frozen configuration."""

from relaxcomm.config.configuration import Config, load
from relaxcomm.config.sections import DataConfig, DriftGuard, Phase
from relaxcomm.config.yaml_text import parse_yaml

__all__ = ["Config", "DataConfig", "DriftGuard", "Phase", "load", "parse_yaml"]

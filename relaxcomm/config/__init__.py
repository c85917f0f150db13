"""YAML to validated, frozen configuration."""

from relaxcomm.config.config import Config, load
from relaxcomm.config.sections import DataConfig, DriftGuard, Phase

__all__ = ["Config", "DataConfig", "DriftGuard", "Phase", "load"]

"""Triggers: when a rule exchanges."""

"""Payloads: what a rule exchanges."""

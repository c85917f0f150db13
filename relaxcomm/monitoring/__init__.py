"""Prometheus metrics of a run, their exporter, and the run log."""

"""Shows a run: metrics, the run log, warnings."""

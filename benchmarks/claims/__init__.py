"""Claims of the papers, tried where not synchronising fails: `python -m benchmarks.claims`."""

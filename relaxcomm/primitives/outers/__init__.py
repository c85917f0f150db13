"""Outer optimizers: how a combined result moves the model."""

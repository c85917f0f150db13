"""Follows a training loop by torch's hooks: which forward, backward and optimizer step belong together."""

"""Checkpoints: all that a run needs to go on as if it had not been stopped."""

from relaxcomm.checkpoint.saving import load as load, save as save

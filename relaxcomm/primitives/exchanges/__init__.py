"""Exchanges: over what, and with whom, messages are combined."""

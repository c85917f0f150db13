"""Compressors: how a tensor is encoded."""

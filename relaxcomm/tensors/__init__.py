"""Flat tensors: buckets, layouts, messages and memory."""

"""Modular communication for data-parallel PyTorch training over slow networks."""

import lazy_loader

# What is imported from where stands in __init__.pyi; each name is when it is used first.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

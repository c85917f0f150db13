"""Modular communication for data-parallel PyTorch training over slow networks."""

import lazy_loader

# __init__.pyi says what comes from where; a name is imported when it is used first.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Classes of PyTorch's and of packages around it, looked up by name so that none is imported for it."""

from __future__ import annotations


def derives_from(cls: type, name: str, package: str = "torch") -> bool:
    """Whether a class is a package's of that name, or derives from it.

    Example:
        >>> import torch
        >>> derives_from(torch.nn.BatchNorm1d, "_NormBase"), derives_from(torch.nn.Linear, "_NormBase")
        (True, False)
    """
    return any(one.__name__ == name and one.__module__.startswith(f"{package}.") for one in cls.__mro__)

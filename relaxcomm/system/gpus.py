"""GPUs of this machine."""

from __future__ import annotations

import torch


def num_gpus() -> int:
    """How many PyTorch can use in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0

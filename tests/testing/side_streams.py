"""What tests of a pretended GPU's streams share."""

from __future__ import annotations

import torch

from relaxcomm.testing import PretendGpu


def races_of(action, *args):
    with PretendGpu(check_streams=True) as gpu:
        action(gpu, *args)
        return gpu.races


def side_stream():
    """One that comes after all that was done until now."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return side

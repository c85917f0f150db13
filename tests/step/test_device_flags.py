"""Flags on their way from a GPU to the host."""

from __future__ import annotations

import torch

from relaxcomm.step.device_flags import DeviceFlags
from relaxcomm.testing import PretendGpu


def test_a_flag_has_come_when_the_stream_of_its_own_gpu_is_that_far(monkeypatch):
    """Which need not be the process's current GPU."""
    asked = []

    def streams(device=None):
        asked.append(device)
        return current(device)

    with PretendGpu():
        current, good = torch.cuda.current_stream, torch.tensor(True, device="cuda")
        monkeypatch.setattr(torch.cuda, "current_stream", streams)
        flags = DeviceFlags(None, None)
        flags.add(good, step=3)
        assert asked == [good.device]
        flags.raise_if_bad()

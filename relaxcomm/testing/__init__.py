"""Tests without the machine that they are about: a GPU that is pretended on the CPU."""

from relaxcomm.testing.pretend_gpu import PretendGpu as PretendGpu

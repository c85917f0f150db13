"""Kernels on a GPU where there is one, in Triton's interpreter where not."""

from __future__ import annotations

import pytest

from tests.kernels import interpreter

if interpreter.REASON is None and not interpreter.HAS_GPU:
    interpreter.mend()


@pytest.fixture
def kernels() -> None:
    """Skip where no kernel can run."""
    if interpreter.REASON is not None:
        pytest.skip(interpreter.REASON)

"""Kernels on a GPU where there is one, in Triton's interpreter where not."""

from __future__ import annotations

import pytest

from tests.kernels import interpreter

REASON = interpreter.why_not()
if REASON is None and not interpreter.HAS_GPU:
    interpreter.mend()


@pytest.fixture
def kernels() -> None:
    """Skip where no kernel can run."""
    if REASON is not None:
        pytest.skip(REASON)

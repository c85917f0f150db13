"""Fixtures of the whole suite."""

from __future__ import annotations

import pytest

from relaxcomm.tensors import buffer_pool

buffer_pool.LEAST_BYTES = 1  # so that what is used again is, with the small models of most tests, used again


@pytest.fixture(params=[pytest.param(False, id="plain"), pytest.param(True, id="detail")])
def debug(request: pytest.FixtureRequest) -> bool:
    """Whether the ranks run under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    return bool(request.param)

"""The `network` fixture: a test that takes it runs on gloo processes and on in-process ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.harness import in_process, on_gloo


@pytest.fixture(
    params=[
        pytest.param(on_gloo, marks=pytest.mark.ranks, id="gloo"),
        pytest.param(in_process, id="in_process"),
    ]
)
def network(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """`network(scenario, size, *args)` gives the list of results, a rank each."""
    return request.param

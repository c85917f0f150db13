"""Fixtures of the whole suite."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

# torch looks up the name of each host that connects; where a name server drops a question, that takes 5 s.
os.environ.setdefault("RES_OPTIONS", "attempts:0")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it would say that a host has no name

# isort: split
import pytest
import torch
from hypothesis import settings

from tests.kernels import interpreter as interpreter  # before anything imports Triton

# isort: split
from relaxcomm.tensors import buffer_pool
from tests.engine.harness import in_process, on_gloo

gc.disable()  # until all tests are collected
settings.register_profile("suite", deadline=None)  # a busy machine takes ten times as long
settings.load_profile("suite")
torch.set_num_threads(1)  # tests run beside each other
buffer_pool.LEAST_BYTES = 1  # so that what is used again is, with the small models of most tests, used again


_values: defaultdict[tuple[Any, str], list[Any]] = defaultdict(list)


def pytest_itemcollected(item: pytest.Item) -> None:
    """As on a chessboard: with three arguments or more each value of one still meets each of another.

    Of the combinations one in two is not slow, or one in `of`.
    """
    marker = item.get_closest_marker("every_other")
    if marker is None:
        return
    assert isinstance(item, pytest.Function)
    place = 0
    for argument in marker.args:
        value, known = item.callspec.params[argument], _values[item.function, argument]
        if value not in known:
            known.append(value)
        place += known.index(value)
    if place % marker.kwargs.get("of", 2):
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What imports have made is no garbage: to look through it takes a twelfth of the suite's time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def torchrun_leaves_its_logs_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It never removes them."""
    os.environ["PET_LOG_DIR"] = str(tmp_path_factory.mktemp("torchrun"))


@pytest.fixture(scope="module", autouse=True)
def nothing_old_is_garbage() -> None:
    """What the files before have imported and kept is none either; some tests collect often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=[pytest.param(False, id="plain"), pytest.param(True, id="detail")])
def debug(request: pytest.FixtureRequest) -> bool:
    """Whether the ranks run under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    return bool(request.param)


@pytest.fixture(
    params=[
        pytest.param(on_gloo, marks=pytest.mark.ranks, id="gloo"),
        pytest.param(in_process, id="in_process"),
    ]
)
def network(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """`network(scenario, size, *args)` gives the list of results on gloo and in process, a rank each."""
    return request.param

"""What primitives declare is what is seen; `__all__` is exact; imports run one way."""

import ast
import types
from pathlib import Path

import pytest
import torch

import relaxcomm
from relaxcomm import registry
from relaxcomm.buckets import Bucket, Item
from relaxcomm.messages import Dense
from relaxcomm.protocol import Context
from relaxcomm.topology import complete
from relaxcomm.transport.base import Membership

COMPRESSORS = [relaxcomm.identity(), relaxcomm.cast("bfloat16"), relaxcomm.cast("float64")]
ROOMS = (
    *(
        "errors",
        "validation",
        "docstrings",
        "frozen",
        "schedules",
        "topology",
        "operations",
        "messages",
        "buckets",
        "transport",
        "pieces",
        "protocol",
    ),
    *(
        "primitives",
        "legality",
        "algorithm",
        "registry",
        "grammar",
        "config",
        "data",
        "engine",
        "tasks",
        "schema",
        "doctor",
        "cli",
    ),
)


def context(rank: int, size: int) -> Context:
    return Context(step=0, start=0, membership=Membership(rank, size), learning_rate=lambda bucket: 0.1)


def test_every_bundled_compressor_is_here():
    assert {type(one).__name__ for one in COMPRESSORS} == set(registry.primitives()["compressor"])


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@pytest.mark.parametrize("numel", [0, 1, 1000])
def test_messages_are_as_declared(compressor, numel):
    tensor = torch.randn(numel)
    messages = []

    def echo():
        coding = compressor.code(context(0, 1), tensor.clone(), {}, keep_own=True)
        message = next(coding)
        while True:
            messages.append(message)
            try:
                message = coding.send([(1.0, message)])
            except StopIteration as stop:
                return stop.value

    result, own = echo()
    assert all(isinstance(one, Dense) and one.kind in compressor.kinds for one in messages)
    count, sent = len(messages), sum(one.tensor.numel() * one.tensor.element_size() for one in messages)
    assert (count, sent) == (compressor.rounds, compressor.message_bytes(numel, 4))
    torch.testing.assert_close(result, own, rtol=0, atol=0)
    torch.testing.assert_close(result, tensor, rtol=2**-8, atol=1e-30)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce_sends_what_it_declares(compressor, size):
    exchange = relaxcomm.all_reduce()

    def rank(group):
        transport = group.transport()
        running = exchange.run(context(group.rank(), size), torch.randn(600), compressor, {})
        operation, operations = next(running), 0
        try:
            while True:
                operations += 1
                label = relaxcomm.operations.Label(0, "0", 0, operations)
                operation = running.send(transport.issue(operation, label).wait())
        except StopIteration:
            return operations, transport.counters.sent

    expected = exchange.bytes_sent(compressor.message_bytes(600, 4), size, complete())
    assert relaxcomm.simulate(rank, size) == [(compressor.rounds * exchange.operations, expected)] * size


def test_all_is_exact():
    public = {
        name
        for name, value in vars(relaxcomm).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(relaxcomm.__all__)
    assert list(relaxcomm.__all__) == sorted(relaxcomm.__all__)


def test_imports_run_one_way():
    root = Path(relaxcomm.__file__).parent
    source = Path(__file__).parents[1] / "relaxcomm"
    assert root.exists()
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room not in ROOMS:
            assert room in ("__init__", "__main__")
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relaxcomm."):
                other = node.module.split(".")[1]
                if room == "legality":  # for the type checker alone
                    continue
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path} imports {node.module}"


def test_channels_last_keeps_its_strides_in_a_bucket():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    bucket = Bucket(0, [Item("a", torch.randn(5)), Item("b", weight)])
    flat = bucket.gather(bucket.empty())
    assert bucket.views(flat)[1].stride() == weight.stride()
    torch.testing.assert_close(bucket.views(flat)[1], weight, rtol=0, atol=0)

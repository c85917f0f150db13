"""What compressors are tried on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from relaxcomm.checks.finding import expect
from relaxcomm.checks.round_trip import context, slots
from relaxcomm.roles import Coding, Compressor, Parts, State
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import SHARED_SUPPORT, Message

NUMEL = 600  # divided by 2, 3 and 4, so that ranks' parts are equal
SEVERAL = Layout(("a", "b", "c"), (torch.Size([19, 15]), torch.Size([4, 5, 6]), torch.Size([195])))
LAYOUTS = one_tensor(NUMEL), SEVERAL  # vectors alone would miss what is done to matrices
THIN = Layout(tuple("abcde"), tuple(map(torch.Size, ([], [1, 8], [8, 1], [0, 3], [5]))))
"""Parameters at which what is done to matrices ends: a number, rows and columns, and none at all."""


def _halves(messages: list[Message]) -> Parts:
    return [(0.5, message) for message in messages]


def coded_beside(
    compressor: Compressor,
    tensor: Tensor,
    other: Tensor,
    state: State,
    others: State | None = None,
    *,
    layout: Layout | None = None,
    combined: Callable[[list[Message]], Parts] = _halves,
    step: int = 0,
) -> Tensor:
    """The mean with what another worker has, of which nothing but its messages is seen, unless told.

    Args:
        compressor: of both.
        tensor: of the first worker.
        other: of the second one.
        state: slots of the first one.
        others: of the second one; its first ones if None.
        layout: of both tensors, unless they lie alone.
        combined: what comes back of the messages of a round.
        step: of both.

    Raises: Broken if they end with different results.
    """
    beside = slots(compressor, other, layout) if others is None else others
    mine, theirs = (
        compressor.encode_decode(context(rank, 2, step, layout), one.clone(), kept, keep_sent=True)
        for rank, (one, kept) in enumerate(((tensor, state), (other, beside)))
    )
    messages = [next(mine), next(theirs)]
    alike = ", and let all ranks send the same entries, which cx.generator does not draw alike"
    while True:
        read = [[own.unpack(one.pack()) for one in messages] for own in messages]  # each by its own
        advanced = [_advanced(*one) for one in zip((mine, theirs), map(combined, read), strict=True)]
        results = [result for result in advanced if isinstance(result, Tensor)]
        if results:
            expect(
                all(torch.equal(results[0], one) for one in results),
                "two workers make other results of the same messages: decode what came back alone"
                + alike * (SHARED_SUPPORT in compressor.facts.kinds),
            )
            return results[0]
        messages = [message for message in advanced if isinstance(message, Message)]


def _advanced(coding: Coding, parts: Parts) -> Message | Tensor:
    """The next message, or at the end the result."""
    try:
        return coding.send(parts)
    except StopIteration as stop:
        result: Tensor = stop.value[0]
        return result


def drawn(seed: int, numel: int = NUMEL) -> Tensor:
    """Normal entries, the same for each seed."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def uneven(seed: int) -> Tensor:
    """The same, ever larger from one end to the other, so that several tensors have other shares of it."""
    return drawn(seed) * torch.logspace(-2, 1, NUMEL)


def named(layout: Layout) -> str:
    """What is tried, in a complaint."""
    shapes = " and ".join(str(list(shape)) for shape in layout.shapes)
    return f"{layout.numel} entries" if len(layout.shapes) == 1 else f"tensors of {shapes}"


def hard_inputs(numel: int) -> Iterator[tuple[str, Tensor]]:
    """Finite tensors at which coders fail, each with what it is."""
    normal = drawn(4, numel)
    outlier = normal.clone()
    outlier[5] = 1000.0
    yield "one entry of 1000 sigma", outlier
    yield "a constant", torch.full((numel,), 3.0)
    yield "a small range far from 0", 1000 + 1e-3 * normal
    yield "entries of 1e-9", 1e-9 * normal
    yield "denormal entries", 1e-40 * normal
    yield "zeros", torch.zeros(numel)
    yield "negative zeros", -torch.zeros(numel)
    yield str(torch.float64), normal.double()
    for dtype, size in itertools.product((torch.float16, torch.bfloat16), (1, 1000, 1e-4)):
        yield f"entries of {size:g} of {dtype}", (size * normal).to(dtype)  # whose squares leave float16

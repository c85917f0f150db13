"""Checks of compressors: messages, bytes, state, and what they do with what is hard to code."""

from __future__ import annotations

import itertools

import torch

from relaxcomm.checks.compressor_trials import NUMEL, drawn, hard_inputs
from relaxcomm.checks.finding import expect
from relaxcomm.checks.in_place import slots_assigned
from relaxcomm.checks.round_trip import as_dense, context, encode_decode, slots
from relaxcomm.errors import RelaxcommError
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.roles import Compressor, is_buffer
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import Dense
from relaxcomm.tensors.precision import wide

_DRAWS = 60


def messages_are_declared(compressor: Compressor) -> None:
    """Kinds, number and bytes of the messages, and that the result is of the tensor's form."""
    for numel in (0, 1, 7, NUMEL):
        tensor = drawn(numel, numel)
        messages, result, decoded = encode_decode(compressor, tensor, slots(compressor, tensor))
        kinds = {message.kind for message in messages}
        expect(
            kinds <= compressor.facts.kinds, f"declares messages {set(compressor.facts.kinds)}, made {kinds}"
        )
        rounds = len(messages)
        expect(rounds == compressor.facts.rounds, f"declares {compressor.facts.rounds} rounds, took {rounds}")
        sent = sum(message.pack().numel() for message in messages)
        declared = compressor.message_bytes(numel, tensor.element_size())
        fits = (
            sent <= declared if compressor.facts.follows_clock else sent == declared
        )  # the most of all steps
        expect(fits, f"declares {declared} bytes for {numel} entries, made {sent}")
        for name, value in (("result", result), ("what was sent", decoded)):
            same = value.shape == tensor.shape and value.dtype == tensor.dtype
            form = f"{list(tensor.shape)} {tensor.dtype}"
            expect(same, f"{name} is {list(value.shape)} {value.dtype}, not {form}")
        expect(bool(torch.equal(result, decoded)), "alone, the result is not what its own messages decode to")


def weights_are_kept(compressor: Compressor) -> None:
    """What comes out is each message's share of the sum, as gossip and servers weigh them."""
    if compressor.facts.rounds > 1:  # where later messages build on a mean
        return
    tensors, shares = (drawn(1), drawn(2)), (0.7, 0.3)
    codings = [
        compressor.encode_decode(context(rank, 2), tensor.clone(), slots(compressor, tensor), keep_sent=True)
        for rank, tensor in enumerate(tensors)
    ]
    parts = list(zip(shares, [next(coding) for coding in codings], strict=True))
    ends = [finish(coding, parts) for coding in codings]
    sent = [as_dense(one, tensor) for (_, one), tensor in zip(ends, tensors, strict=True)]
    wanted = shares[0] * sent[0].double() + shares[1] * sent[1].double()
    for result, _ in ends:
        expect(
            torch.allclose(result.double(), wanted, rtol=1e-2, atol=1e-2),
            "two messages with the weights 0.7 and 0.3 do not come out as 0.7 of one and 0.3 of the other",
        )


def values_are_declared(compressor: Compressor) -> None:
    """How many values a message holds that a chain can encode further, and how long each is."""
    layouts = one_tensor(NUMEL), Layout(("a", "b"), (torch.Size([20, 15]), torch.Size([NUMEL - 300])))
    for layout, dtype in itertools.product(layouts, (torch.float32, torch.float16)):
        tensor = drawn(3).to(dtype)
        declared = compressor.layout_values(layout, tensor.element_size())
        if declared is None:
            return
        message = encode_decode(compressor, tensor, slots(compressor, tensor), layout=layout)[0][0]
        values = message.tensor if isinstance(message, Dense) else getattr(message, "values", tensor[:0])
        made = values.numel(), values.element_size()
        fits = made == declared or (compressor.facts.follows_clock and made <= declared)
        expect(fits, f"declares (values, bytes of each) of {declared} for {NUMEL} entries, made {made}")


def loss_is_declared(compressor: Compressor) -> None:
    """The contraction bound."""
    bound = compressor.contraction(NUMEL)
    if bound is None:
        return
    tensor, lost = drawn(1), 0.0
    for step in range(_DRAWS):
        _, result, _ = encode_decode(compressor, tensor, slots(compressor, tensor), step)
        lost += float((result - tensor).square().sum() / tensor.square().sum()) / _DRAWS
    expect(lost <= bound * 1.05 + 1e-6, f"declares to lose {bound:.4g} ||x||^2 at most, lost {lost:.4g}")


def state_is_all(compressor: Compressor) -> None:
    """A coder that goes on from saved slots makes the same messages."""
    tensors = [drawn(step) for step in range(8)]
    state = slots(compressor, tensors[0])
    for step in range(4):
        encode_decode(compressor, tensors[step], state, step)
    saved = {name: value.clone() for name, value in state.items() if not is_buffer(name)}
    restored = {**slots(compressor, tensors[0]), **saved}
    for step in range(4, 8):
        ours = encode_decode(compressor, tensors[step], state, step)
        theirs = encode_decode(compressor, tensors[step], restored, step)
        same = all(torch.equal(a.pack(), b.pack()) for a, b in zip(ours[0], theirs[0], strict=True))
        expect(same, "goes on differently from its saved slots: it keeps state elsewhere, or draws unseeded")


def slots_are_assigned(compressor: Compressor) -> None:
    """A slot changes by assignment."""
    state = slots(compressor, torch.zeros(NUMEL))
    for step in range(4):
        with slots_assigned(state):
            encode_decode(compressor, drawn(step), state, step)


def hard_inputs_are_survived(compressor: Compressor) -> None:
    """Finite entries come out finite, and what is not finite is never hidden."""
    for what, tensor in hard_inputs():
        _, result, decoded = encode_decode(compressor, tensor, slots(compressor, tensor))
        expect(
            bool(result.isfinite().all() and decoded.isfinite().all()), f"{what}: the result is not finite"
        )
        allowed = {tensor.dtype, wide(tensor.dtype)}
        expect(
            {result.dtype, decoded.dtype} <= allowed,
            f"{what}: the result is {result.dtype}, what was sent {decoded.dtype}",
        )
    for bad in (float("nan"), float("inf")):
        tensor = torch.randn(NUMEL)
        tensor[3] = bad
        try:
            _, result, _ = encode_decode(compressor, tensor, slots(compressor, tensor))
        except RelaxcommError:
            continue
        hidden = bool(result.isfinite().all())
        expect(not hidden, f"an entry that is {bad} comes out as finite numbers, so no rank would notice")

"""Checks of compressors: what they declare is what is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from relaxcomm.checks.finding import expect
from relaxcomm.checks.round_trip import context, encode_decode, slots
from relaxcomm.errors import RelaxcommError
from relaxcomm.roles import Compressor, is_buffer
from relaxcomm.tensors.precision import wide

_NUMEL = 600
_DRAINED = 3000  # rounds after which nothing may be left of what was kept
_DRAWS = 300


def messages_are_declared(compressor: Compressor) -> None:
    """Kinds, number and bytes of the messages, and that the result is of the tensor's form."""
    for numel in (0, 1, 7, _NUMEL):
        tensor = torch.randn(numel, generator=_seeded(numel))
        messages, result, own = encode_decode(compressor, tensor, slots(compressor, tensor))
        kinds = {message.kind for message in messages}
        expect(kinds <= compressor.kinds, f"declares messages {set(compressor.kinds)}, made {kinds}")
        rounds = len(messages)
        expect(rounds == compressor.rounds, f"declares {compressor.rounds} rounds, took {rounds}")
        sent = sum(message.pack().numel() for message in messages)
        declared = compressor.message_bytes(numel, tensor.element_size())
        fits = sent <= declared if compressor.follows_clock else sent == declared  # the most of all steps
        expect(fits, f"declares {declared} bytes for {numel} entries, made {sent}")
        for name, value in (("result", result), ("own", own)):
            same = value.shape == tensor.shape and value.dtype == tensor.dtype
            form = f"{list(tensor.shape)} {tensor.dtype}"
            expect(same, f"{name} is {list(value.shape)} {value.dtype}, not {form}")
        expect(bool(torch.equal(result, own)), "alone, the result is not what its own messages decode to")


def loss_is_declared(compressor: Compressor) -> None:
    """The contraction bound, and that the mean of many codings is the tensor if unbiased."""
    tensor = torch.randn(_NUMEL, generator=_seeded(1))
    drawn = torch.stack(
        [encode_decode(compressor, tensor, slots(compressor, tensor), step)[1] for step in range(_DRAWS)]
    )
    size = tensor.square().sum()
    lost = float((drawn - tensor).square().sum(1).mean() / size)
    bound = compressor.contraction(_NUMEL)
    if bound is not None:
        expect(lost <= bound * 1.05 + 1e-6, f"declares to lose {bound:.4g} ||x||^2 at most, lost {lost:.4g}")
    if compressor.unbiased and not compressor.keeps_rest and not compressor.builds_on_results:
        bias = float((drawn.mean(0) - tensor).square().sum() / size)
        noise = 6 * lost / _DRAWS + 1e-4
        expect(bias <= noise, f"declares no bias, but the mean of {_DRAWS} is off by {bias:.3g} ||x||^2")
    if compressor.linear:
        expect(lost <= 2**-14, f"declares to be linear, but loses {lost:.3g} ||x||^2")


def mass_is_kept(compressor: Compressor) -> None:
    """What a message leaves out is sent later: of an impulse nothing is lost."""
    tensor = torch.randn(_NUMEL, generator=_seeded(2))
    state, sent, silence = slots(compressor, tensor), torch.zeros(_NUMEL), torch.zeros(_NUMEL)
    missing = 1.0
    for step in range(_DRAINED):
        sent += encode_decode(compressor, silence if step else tensor, state, step)[2]
        missing = float((tensor.abs() - sent * tensor.sign()).clamp(min=0).sum() / tensor.abs().sum())
        if missing < 1e-3:
            return
    expect(False, f"declares to keep the rest, but {missing:.1%} of an impulse was never sent")


def state_is_all(compressor: Compressor) -> None:
    """A coder that goes on from saved slots makes the same messages."""
    tensors = [torch.randn(_NUMEL, generator=_seeded(step)) for step in range(8)]
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
    """A slot changes by assignment: the engine keeps the old tensor until all ranks are well."""
    state = slots(compressor, torch.zeros(_NUMEL))
    for step in range(4):
        held = {name: (slot, slot.clone()) for name, slot in state.items() if not is_buffer(name)}
        encode_decode(compressor, torch.randn(_NUMEL, generator=_seeded(step)), state, step)
        for name, (slot, before) in held.items():
            how = f"assign a new tensor to state[{name!r}]"
            expect(
                torch.equal(slot.nan_to_num(), before.nan_to_num()),
                f"writes into its slot {name!r} in place, which cannot be taken back; {how}",
            )


def clock_is_declared(compressor: Compressor) -> None:
    """A message can be read in another step, unless that is declared."""
    if compressor.rounds > 1 or compressor.follows_clock:
        return
    tensor = torch.randn(_NUMEL, generator=_seeded(3))
    messages, result, _ = encode_decode(compressor, tensor, slots(compressor, tensor))
    reading = compressor.code(context(step=7), torch.ones(_NUMEL), slots(compressor, tensor), keep_own=False)
    mine = next(reading)
    try:
        reading.send([(1.0, mine.unpack(messages[0].pack()))])
    except StopIteration as stop:
        same = torch.equal(stop.value[0], result)
        expect(same, "a message reads differently in another step; declare follows_clock")


def hard_inputs_are_survived(compressor: Compressor) -> None:
    """Finite entries come out finite, and what is not finite is never hidden."""
    for what, tensor in _hard_inputs():
        _, result, own = encode_decode(compressor, tensor, slots(compressor, tensor))
        expect(bool(result.isfinite().all() and own.isfinite().all()), f"{what}: the result is not finite")
        allowed = {tensor.dtype, wide(tensor.dtype)}
        expect({result.dtype, own.dtype} <= allowed, f"{what}: the result is {result.dtype}, own {own.dtype}")
    for bad in (float("nan"), float("inf")):
        tensor = torch.randn(_NUMEL)
        tensor[3] = bad
        try:
            _, result, _ = encode_decode(compressor, tensor, slots(compressor, tensor))
        except RelaxcommError:
            continue
        hidden = bool(result.isfinite().all())
        expect(not hidden, f"an entry that is {bad} comes out as finite numbers, so no rank would notice")


def _hard_inputs() -> Iterator[tuple[str, Tensor]]:
    normal = torch.randn(_NUMEL, generator=_seeded(4))
    outlier = normal.clone()
    outlier[5] = 1000.0
    yield "one entry of 1000 sigma", outlier
    yield "a constant", torch.full((_NUMEL,), 3.0)
    yield "a small range far from 0", 1000 + 1e-3 * normal
    yield "entries of 1e-9", 1e-9 * normal
    yield "denormal entries", 1e-40 * normal
    yield "zeros", torch.zeros(_NUMEL)
    yield "negative zeros", -torch.zeros(_NUMEL)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        yield str(dtype), normal.to(dtype)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


_CHECKS: dict[str, Callable[[Compressor], None]] = {
    "messages": messages_are_declared,
    "loss": loss_is_declared,
    "state": state_is_all,
    "slots": slots_are_assigned,
    "clock": clock_is_declared,
    "hard inputs": hard_inputs_are_survived,
}


def compressor_checks(compressor: Compressor) -> dict[str, Callable[[], None]]:
    """The checks that apply to a compressor, by name."""
    keeps = compressor.keeps_rest and not compressor.builds_on_results  # whose result is an estimate
    kept = {"mass": mass_is_kept} if keeps else {}
    return {name: partial(run, compressor) for name, run in {**_CHECKS, **kept}.items()}

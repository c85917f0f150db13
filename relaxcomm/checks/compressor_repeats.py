"""Checks of what a compressor makes when it codes the same again, or on other ranks, and of what it writes
into."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from relaxcomm.checks.compressor_trials import LAYOUTS, NUMEL, SEVERAL, drawn, named
from relaxcomm.checks.conduct import expect_left, global_states, left_alone, slots_assigned
from relaxcomm.checks.finding import Broken, expect
from relaxcomm.checks.round_trip import context, encode_decode, ended, slots
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.roles import Coding, Compressor, is_buffer
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import QUANTIZED, SIGNS, SPARSE, Dense
from relaxcomm.tensors.unshared import UnsharedState

_LENT = (
    (True, "an exchange sums up in a message's memory: take what was sent before the yield"),
    (False, "what is decoded goes to cx.out, perhaps the tensor: take what you need of it before the yield"),
)
_RANKS = 3
_SHOWN_STEPS = 3
_MOST_STEPS = 200  # in which what is seldom drawn is drawn
_OF_EACH = {QUANTIZED, SIGNS, SPARSE}  # messages that nobody adds up on their way
_DRAWS = 30
_ERRORS = 6  # of a mean of so many, within which means of ranks lie


def ranks_do_alike(compressor: Compressor) -> None:
    """Of the same tensor all ranks send the same, or each draws for itself in each step."""

    def sent(rank: int, step: int) -> Tensor:
        return encode_decode(compressor, drawn(1), None, step, rank=rank, size=_RANKS)[2]

    def apart(steps: int) -> list[int]:
        """Ranks that send the same in all steps, where others do not, or send something else."""
        same = [
            rank
            for rank in range(_RANKS)
            if all(sent(rank, step).equal(sent(rank, 0)) for step in range(1, steps))
        ]
        return [rank for rank in same if len(same) < _RANKS or not sent(rank, 0).equal(sent(0, 0))]

    is_rare = not sent(0, 0).any()
    ranks = (is_rare or apart(_SHOWN_STEPS)) and apart(_MOST_STEPS)
    expect(
        not ranks,
        f"of the same tensor in {_MOST_STEPS} steps ranks {ranks} of {_RANKS} send the same each time, and "
        "not what others send: do on each rank the same, or what some have learned is lost",
    )
    draws = not torch.equal(sent(0, 0), sent(0, 1))
    if draws:
        _scales_alike(compressor)
    if compressor.facts.unbiased and compressor.facts.kinds <= _OF_EACH and draws:
        expect(
            not all(torch.equal(sent(0, step), sent(1, step)) for step in range(_SHOWN_STEPS)),
            "draws the same numbers on all ranks, so that what this adds is in their mean as a whole: draw "
            "from cx.generator(seed, tensor.device), other numbers on each rank, or send the same entries as "
            "SharedSupport",
        )


def _scales_alike(compressor: Compressor) -> None:
    """Of what is drawn as much comes on each rank, on average."""
    tensor = drawn(1)

    def came(rank: int) -> list[float]:
        codings = (encode_decode(compressor, tensor, step=n, rank=rank, size=_RANKS) for n in range(_DRAWS))
        return [float(sent @ tensor) for *_, sent in codings]

    found = torch.tensor([came(rank) for rank in range(_RANKS)])
    mean, error = found.mean(1), float(found.std(1).max()) / _DRAWS**0.5
    expect(
        float(mean.max() - mean.min()) <= _ERRORS * error + 1e-3 * float(mean.abs().max()),
        f"of the same tensor ranks send {', '.join(f'{one:.3g}' for one in (mean / mean[0]).tolist())} times "
        "what rank 0 does, on average: do on each rank the same",
    )


def expect_same_when_asked(compressor: Compressor, layout: Layout) -> None:
    """Most exchanges do not ask for what was sent: messages, results and slots are the same all the same."""
    generators = global_states()
    if _codes_alike(compressor, layout, True, False):
        return
    left_alone(generators)
    expect(
        _codes_alike(compressor, layout, True, True),
        f"codes {named(layout)} to other messages or another result where another worker in its process "
        "codes the same beside it: it keeps state in a module, a class or itself; keep it in slots",
    )
    raise Broken(
        f"codes {named(layout)} to other messages or another result with keep_sent=False, as most exchanges "
        "ask; let it decide whether what was sent is returned, and nothing else"
    )


def _codes_alike(compressor: Compressor, layout: Layout, *asked: bool) -> bool:
    """Whether two workers, who ask for what was sent or do not, get the same of the same tensors."""
    first = drawn(0, layout.numel)
    states = [slots(compressor, first, layout) for _ in asked]
    for step in range(2):
        cx, tensor, found = context(step=step, layout=layout), drawn(step, layout.numel), []
        for keep_sent, state in zip(asked, states, strict=True):
            coding = compressor.encode_decode(cx, tensor.clone(), state, keep_sent=keep_sent)
            messages, result, _ = ended(coding)
            found.append([*(message.pack() for message in messages), result])
        if len(found[0]) != len(found[1]) or not all(map(torch.equal, *found)):
            return False
    return True


def expect_nothing_lent_is_kept(compressor: Compressor, layout: Layout) -> None:
    """Exchanges write into messages, as a sum in place does, and what is decoded into `cx.out`."""
    first = drawn(0, layout.numel)
    for keep_sent, told in _LENT:
        states = [slots(compressor, first, layout) for _ in range(2)]
        for step in range(2):
            cx, tensor = context(step=step, layout=layout), drawn(step, layout.numel)
            alone = compressor.encode_decode(cx, tensor.clone(), states[0], keep_sent=keep_sent)
            into = cx if keep_sent else cx.at(out=tensor)
            lent = compressor.encode_decode(into, tensor, states[1], keep_sent=keep_sent)
            expect(
                all(map(torch.equal, _made(alone), _made(lent, writes=True))),
                f"codes {named(layout)} to something else where {told}",
            )


def _made(coding: Coding, *, writes: bool = False) -> list[Tensor]:
    """All messages, the result, and what was sent if that is told."""
    made, message = [], next(coding)
    while True:
        made.append(message.pack().clone())
        back = message
        if writes and isinstance(message, Dense):
            back = message.unpack(made[-1].clone())
            message.tensor.fill_(1)
        try:
            message = coding.send([(1.0, back)])
        except StopIteration as stop:
            result, sent = stop.value
            return [*made, result, *([] if sent is None else [as_dense(sent, result)])]


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
    """A slot changes by assignment, and the tensor not at all where a wrapper takes from it what was sent."""
    for layout, dtype in (*itertools.product(LAYOUTS, [torch.float32]), (SEVERAL, torch.bfloat16)):
        state = slots(compressor, torch.zeros(NUMEL, dtype=dtype), layout)
        for step in range(4):
            tensor, cx, keep_sent = drawn(step).to(dtype), context(step=step, layout=layout), step % 2 == 1
            with slots_assigned(state):
                lent = UnsharedState(state, tensor)
                coding = compressor.encode_decode(cx, tensor, lent, keep_sent=keep_sent)
                _expect_only_read(coding, tensor, f"{named(layout)} of {dtype}", keep_sent=keep_sent)


def _expect_only_read(coding: Coding, tensor: Tensor, what: str, *, keep_sent: bool) -> None:
    """Complain if the tensor is written into; unless `keep_sent`, it is free when its messages are back."""
    before, message = tensor.clone(), next(coding)
    for number in itertools.count(1):
        expect_left(f"the tensor that it encodes ({what}, before message {number})", [tensor], [before])
        try:
            message = coding.send([(1.0, message)])
        except StopIteration:
            break
    if keep_sent:
        expect_left(f"the tensor that it encodes ({what}, with keep_sent=True)", [tensor], [before])

"""Checks of what a compressor keeps of what its messages have left out, and sends later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.checks.compressor_trials import NUMEL, coded_beside, drawn
from relaxcomm.checks.finding import expect
from relaxcomm.checks.round_trip import encode_decode, slots
from relaxcomm.roles import Compressor, State
from relaxcomm.roles.carried import share_of

_DRAINED = 3000  # messages after which nothing may be left of what was kept
_LITTLE, _QUIET = 0.01, 8  # of an impulse in a message, and in how many one after the other
_MEMBERS = (0, 1), (1, 3)  # (rank, size): alone, and one that is not the first
_WHOLE, _ALIKE = 0.9, 1.25  # of a tensor, that all has come; how much more of it may come on another rank
_BESIDE, _LEFT = 4, 0.05  # messages beside another worker, and how much may never be sent
_WARM = 10_000  # steps after which a coder that begins otherwise has warmed up
_LARGE, _ENTRIES = 520.0, 300  # in bfloat16 the part of one entry is no number that can be taken off
_WAITED = 64  # steps after which bfloat16 is too short for what waits


def memory_is_declared(compressor: Compressor) -> None:
    """In silence comes what a message has left out, nothing, something, or all of it, on whatever rank."""
    facts = compressor.facts
    is_lossless = facts.memory == "lossless" and not facts.unbiased  # what is unbiased is so on average
    for rank, size in _MEMBERS:
        _comes_as_declared(compressor, rank, size)
    if is_lossless:
        _loses_nothing(compressor, *_MEMBERS[-1], estimates=facts.follows_results)
    if not (facts.memory == "none" or facts.unbiased or facts.follows_results):
        _comes_to_an_end(compressor)
        _grows_no_faster_than_momentum(compressor)
        if is_lossless:
            _waits_in_full(compressor)
            _is_paid_off(compressor)


def _comes_as_declared(compressor: Compressor, rank: int, size: int) -> None:
    """What adds up results sends how far a tensor is from them: it is given the same again, not silence."""
    facts, tensor, silence = compressor.facts, drawn(2), torch.zeros(NUMEL)
    state, on = slots(compressor, tensor), f"on rank {rank} of {size}"

    def sent_of(given: Tensor, step: int) -> Tensor:
        return encode_decode(compressor, given, state, step, rank=rank, size=size)[2]

    sent = sent_of(tensor, 0)
    if facts.memory == "none":
        later = sent_of(silence, 1)
        expect(not later.any(), f"declares no memory, but something comes in silence {on}")
    elif float((tensor - sent).norm()) > 1e-6 * float(tensor.norm()):
        again = sent_of(tensor if facts.follows_results else silence, 1)
        came = again - sent if facts.follows_results else again
        expect(bool(came.any()), f"declares a memory, but nothing comes of what a message left out {on}")


def _loses_nothing(compressor: Compressor, rank: int, size: int, *, estimates: bool) -> None:
    """All of an impulse is sent; what estimates rather than adds up comes to what stays as it is, also when
    a worker is lost with its own."""
    missing = _never_sent(compressor, slots(compressor, drawn(2)), rank, size, estimates=estimates)
    never = "was never sent on rank {} of {}".format
    expect(
        missing < (_LEFT if estimates else 1e-3),
        f"declares to lose nothing, but {missing:.1%} {never(rank, size)}",
    )
    if estimates:
        kept = compressor.facts.slots
        missing = _never_sent(compressor, _left_by_another(compressor), 0, 1, estimates=True)
        expect(
            missing < _LEFT,
            f"declares to lose nothing, but when another worker is lost {missing:.1%} {never(0, 1)}: declare "
            f"'share' for what sums up its own messages and 'mean of shares' for their mean, not {kept}",
        )


def _left_by_another(compressor: Compressor) -> State:
    """The slots of one of two workers after the other, whose messages were not alike, is lost."""
    tensors, known = (drawn(5), drawn(6)), compressor.facts.slots
    states = [slots(compressor, one) for one in tensors]
    for step in range(_BESIDE):
        coded_beside(compressor, *tensors, *states, step=step)
    means = [slot for slot, how in known.items() if how == "mean of shares"]
    states[0].update({mean: states[0][share_of(known, mean)] for mean in means})
    return states[0]


def _never_sent(compressor: Compressor, state: State, rank: int, size: int, *, estimates: bool) -> float:
    tensor, silence, total, missing = drawn(2), torch.zeros(NUMEL), torch.zeros(NUMEL), 1.0
    for step in range(_DRAINED // 4 if estimates else _DRAINED):
        given = tensor if estimates or not step else silence
        _, result, sent = encode_decode(compressor, given, state, step, rank=rank, size=size)
        total = total + (result if estimates else sent)
        reached = (total / (step + 1), result) if estimates else (total,)
        missing = min(_missing(tensor, one) for one in reached)
        if missing < (_LEFT if estimates else 1e-3):
            break
    return missing


def _comes_to_an_end(compressor: Compressor) -> None:
    """What was sent is no longer kept: in silence less and less comes.

    Momentum may send more than it got, but as much on all ranks.
    """
    tensor = drawn(2)
    norm, shares = float(tensor.norm()), []
    for rank, size in _MEMBERS:
        total, came = _until_silence(compressor, [tensor], norm, rank=rank, size=size)
        expect(
            came < _LITTLE,
            f"still sends {came:.1%} of an impulse {_DRAINED} steps later: what was sent is sent again, "
            "so take it out of what is kept, such as state['residual'] = whole - sent",
        )
        shares.append(float(total @ tensor) / norm**2)
    least, most = sorted(shares)
    apart = compressor.facts.memory == "lossless" and least > _WHOLE and most > _ALIKE * least
    told = " and ".join(f"{share:.3g} times" for share in shares)
    expect(not apart, f"sends {told} a tensor in all on {_MEMBERS} (rank, size): do on each rank the same")


def _grows_no_faster_than_momentum(compressor: Compressor) -> None:
    """What waits while larger entries are sent: momentum adds less to it in each step, a factor ever more."""
    tensor, waits = drawn(2), torch.arange(NUMEL) % 50 == 0
    large, norm = torch.where(waits, 0.0, 1e4 * tensor.sign()), float(tensor[waits].norm())
    first = encode_decode(compressor, torch.where(waits, tensor, large), slots(compressor, tensor))[2]
    if first[waits].any():  # all is sent at once
        return
    came = []
    for rounds in (0, 4, 8):
        given = [torch.where(waits, tensor, large if rounds else 0.0), *[large] * (rounds - 1)]
        total = _until_silence(compressor, given, norm)[0]
        came.append(float((total * tensor.sign())[waits].sum() / tensor[waits].abs().sum()))
    begin, middle, end = came
    expect(
        end - middle <= 1.05 * max(0.0, middle - begin) + 0.05,
        f"of what waits for {0, 4, 8} steps it sends {begin:.3g}, {middle:.3g} and {end:.3g} times as much: "
        "what was left grows ever faster, so add it to the next message once",
    )


def _waits_in_full(compressor: Compressor) -> None:
    """What waits in bfloat16 while larger entries are sent is added up in a type that holds all of it."""
    waits = torch.arange(NUMEL) % 50 == 0
    small, signs = torch.where(waits, 2**-3, 0.0).bfloat16(), drawn(2).sign().bfloat16()
    large = torch.where(waits, 0.0, 100.0).bfloat16()  # of which float16 holds the sum, too
    given = [signs * (256 * small + large), *[signs * (small + large)] * _WAITED]
    wanted = torch.stack(given).float().sum(0)[waits]
    total = _until_silence(compressor, given, float(wanted.norm()), begun=_WARM)[0]
    missing = _missing(wanted, total[waits])
    expect(
        missing < 0.05,
        f"declares to lose nothing, but of bfloat16 entries that wait {_WAITED} steps {missing:.1%} "
        "is lost: add what is kept to the tensor in float32, as slots of bucket.zeros() are",
    )


def _is_paid_off(compressor: Compressor) -> None:
    """One large entry that comes bit by bit comes as a whole: what is left grows less by each bit."""
    tensor = torch.zeros(_ENTRIES, dtype=torch.bfloat16)
    tensor[0] = _LARGE
    state, total, quiet, step = slots(compressor, tensor), 0.0, 0, 0
    while step < 3 * _ENTRIES and (quiet < _QUIET or abs(total - _LARGE) > _LEFT * _LARGE):
        given = torch.zeros_like(tensor) if step else tensor
        came = float(encode_decode(compressor, given, state, step)[2][0])
        total, quiet, step = total + came, 0 if came else quiet + 1, step + 1
    expect(
        abs(total - _LARGE) < 1.2 * _LEFT * _LARGE,
        f"declares to lose nothing, but of one entry of {_LARGE:g} in bfloat16 {total:.4g} comes in {step} "
        "messages: keep what is left in float32, as slots of bucket.zeros() are",
    )


def _until_silence(
    compressor: Compressor,
    given: Sequence[Tensor],
    norm: float,
    *,
    rank: int = 0,
    size: int = 1,
    begun: int = 0,
) -> tuple[Tensor, float]:
    """The sum of all that is sent of tensors and in the silence after them; and the norm of the last message
    as a part of `norm`."""
    silence = torch.zeros_like(given[0])
    state, total, quiet, came = slots(compressor, silence), torch.zeros(NUMEL), 0, 1.0
    for step in range(_DRAINED):
        one = given[step] if step < len(given) else silence
        sent = encode_decode(compressor, one, state, begun + step, rank=rank, size=size)[2]
        total, came = total + sent, float(sent.norm()) / norm
        quiet = quiet + 1 if came < _LITTLE else 0
        if quiet == _QUIET:
            break
    return total, came


def _missing(tensor: Tensor, reached: Tensor) -> float:
    """The part of a tensor that was not reached."""
    return float((tensor.abs() - reached * tensor.sign()).clamp(min=0).sum() / tensor.abs().sum())

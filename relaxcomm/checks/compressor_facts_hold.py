"""Checks of compressors: each declared fact against what is seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial, wraps

import torch
from torch import Tensor

from relaxcomm.checks import compressor_memory, compressor_repeats, compressors_hold, slots_hold
from relaxcomm.checks.compressor_trials import LAYOUTS, NUMEL, SEVERAL, coded_beside, drawn, uneven
from relaxcomm.checks.conduct import checks_of, expect_from_start
from relaxcomm.checks.finding import Broken, expect, told
from relaxcomm.checks.round_trip import context, encode_decode, ended, slots
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.roles import Compressor
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import DENSE

_ROUNDING = 2**-15  # of ||x||^2, what the shortest floating-point type rounds off
_RANKS = 3  # that draw in turn
_FIRST_STEPS = 3
_MORE = 5  # entries behind a tensor's own


def scope_is_declared(compressor: Compressor) -> None:
    """What lies outside the declared scope, an entry or a tensor, changes nothing in how it is coded."""
    if compressor.facts.scope == "entry":
        _sees_only_the_entry(compressor)
        _sees_no_other_entry(compressor)
    if compressor.facts.scope in ("entry", "tensor"):
        _sees_only_the_tensor(compressor)


def _sees_only_the_entry(compressor: Compressor) -> None:
    tensor, more = drawn(5), torch.cat([drawn(6, _MORE), torch.zeros(1)])

    def decoded(*parts: Tensor) -> Tensor:
        return encode_decode(compressor, torch.cat(parts), slots(compressor, tensor))[1]

    declares = "declares to look at the entry alone, but"
    try:
        alone, both, behind_others = decoded(tensor), decoded(tensor, more), decoded(10 * tensor, more)
    except Exception as error:  # a plug-in may raise anything
        raise Broken(
            f"{declares} with others behind those of its bucket raises {told(error)}; what keeps slots as "
            "long as a bucket declares scope='tensor' at least"
        ) from error
    expect(torch.equal(both[:NUMEL], alone), f"{declares} entries behind it change what comes out")
    expect(torch.equal(both[NUMEL:], behind_others[NUMEL:]), f"{declares} those before it change it")
    expect(torch.equal(both[NUMEL:].sign(), more.sign()), f"{declares} what is behind a bucket's is lost")


def _sees_no_other_entry(compressor: Compressor) -> None:
    every_other = torch.arange(NUMEL) % 2 == 0
    for layout in LAYOUTS:
        tensor, found = drawn(5), []
        for one in (tensor, torch.where(every_other, 10 * drawn(7), tensor)):
            state = slots(compressor, tensor, layout)
            found.append(encode_decode(compressor, one, state, layout=layout)[1][~every_other])
        same = torch.equal(*found)
        expect(same, "declares to look at the entry alone, but those beside it change what comes out")


def _sees_only_the_tensor(compressor: Compressor) -> None:
    first = SEVERAL.shapes[0].numel()
    found = []
    for others in (drawn(7, NUMEL - first), 10 * drawn(8, NUMEL - first)):
        tensor = torch.cat([drawn(5, first), others])
        found.append(encode_decode(compressor, tensor, layout=SEVERAL)[1][:first])
    expect(torch.equal(*found), "declares to look at one tensor, but another one changes what comes out")


def linearity_is_declared(compressor: Compressor) -> None:
    """`C(a + b) = C(a) + C(b)` in one step, whatever was coded in the step before."""
    if not compressor.facts.linear:
        return
    for layout in LAYOUTS:
        _is_linear(compressor, layout)


def _is_linear(compressor: Compressor, layout: Layout) -> None:
    tensors = drawn(5), 3 * drawn(6)

    def decoded(tensor: Tensor) -> Tensor:
        state = slots(compressor, tensor, layout)
        encode_decode(compressor, drawn(9), state, layout=layout)
        return encode_decode(compressor, tensor, state, step=1, layout=layout)[1]

    apart = [decoded(one) for one in tensors]
    off = float((decoded(tensors[0] + tensors[1]) - apart[0] - apart[1]).square().sum())
    size = sum(float(one.square().sum()) for one in (*tensors, *apart))
    expect(off <= _ROUNDING * size, f"declares to be linear, but a sum is {off / size:.3g} of ||x||^2 off")


def bias_is_declared(compressor: Compressor, draws: int) -> None:
    """The mean of many codings is the tensor, in a first message and in the one after it."""
    tensor = _within(compressor.facts.clip)
    if not compressor.facts.unbiased or tensor is None:
        return
    if math.isfinite(compressor.facts.max_norm):
        tensor *= 0.99 * compressor.facts.max_norm / float(tensor.norm())
    found: dict[str, list[Tensor]] = {"first messages": [], "second messages": []}
    for draw in range(draws // 2):
        state = slots(compressor, tensor)
        for index, results in enumerate(found.values()):
            step, rank = 2 * draw + index, draw % _RANKS
            results.append(encode_decode(compressor, tensor, state, step, rank=rank, size=_RANKS)[1])
    if compressor.facts.rounds > 1 and DENSE not in compressor.facts.kinds:  # of which any mean may be made
        beside = partial(coded_beside, compressor, tensor / 3, tensor)
        means = [1.5 * beside(slots(compressor, tensor), step=step) for step in range(draws // 2)]
        found["messages beside larger ones"] = means
    size = tensor.square().sum()
    for which, results in found.items():
        stacked = torch.stack(results)
        lost = float((stacked - tensor).square().sum(1).mean() / size)
        bias = float((stacked.mean(0) - tensor).square().sum() / size)
        noise = 6 * lost / len(results) + 1e-4
        expect(bias <= noise, f"declares no bias, but the mean of {which} is off by {bias:.3g} ||x||^2")


def _within(clip: float) -> Tensor | None:
    """A tensor whose largest entries are nearly `clip` times its root mean square; there is none below 1."""
    if math.isinf(clip):
        tensor = drawn(1)
        tensor[5] = 20.0
        return tensor
    if clip < 1.02:
        return None
    small = (1 / (0.99 * clip) ** 2 - 0.1) / 0.9  # squared, so that the mean square is 1 / clip^2, nearly
    sizes = torch.full((NUMEL,), math.sqrt(min(1.0, max(0.0, small))))
    sizes[::10] = 1.0
    return sizes * drawn(1).sign()


def largest_norm_is_declared(compressor: Compressor) -> None:
    """What is longer is scaled down, where that is declared: more of it comes out as short."""
    bound, tensor = compressor.facts.max_norm, drawn(1)
    if math.isinf(bound):
        return

    def size(times: float, step: int) -> float:
        long = tensor * (times * bound / float(tensor.norm()))
        return float(encode_decode(compressor, long, slots(compressor, tensor), step)[1].norm())

    grown = min(size(1000, step) / size(10, step) for step in (0, 10))
    declares = f"declares to scale down from a norm of {bound:.3g} on"
    expect(grown < 2, f"{declares}, but of 100 times as much {grown:.3g} times as much comes out")


def results_are_followed_as_declared(compressor: Compressor) -> None:
    """Whatever came back, the next message is the same, and reads the same, unless that is declared."""
    if compressor.facts.follows_results:
        return
    tensor, after = drawn(5), []
    for other in (drawn(6), 5 * uneven(7)):
        state = slots(compressor, tensor, SEVERAL)
        coded_beside(compressor, tensor, other, state, layout=SEVERAL)
        messages, result, _ = encode_decode(compressor, drawn(8), state, 1, SEVERAL)
        after.append([*(message.pack() for message in messages), result])
    same = all(torch.equal(one, other) for one, other in zip(*after, strict=True))
    expect(same, "goes on differently after another result; declare follows_results")


def finite_is_kept_as_declared(compressor: Compressor) -> None:
    """Messages of the largest numbers are finite, where that is declared."""
    if not compressor.facts.keeps_finite:
        return
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        bound = torch.finfo(dtype).max
        tensor = torch.tensor([bound, -bound, 0.0, bound], dtype=dtype)
        state = slots(compressor, tensor)
        for step in range(2):
            sent = encode_decode(compressor, tensor, state, step)[2]
            expect(bool(sent.isfinite().all()), f"declares to keep {dtype} finite, but {bound:.3g} is not")


def clock_is_declared(compressor: Compressor) -> None:
    """A message can be read in another step, unless that is declared."""
    expect_from_start(partial(_results, compressor))
    if compressor.facts.rounds > 1 or compressor.facts.follows_clock:
        return
    tensor = drawn(3)
    messages, result, _ = encode_decode(compressor, tensor)
    reading = compressor.encode_decode(
        context(step=7), torch.ones(NUMEL), slots(compressor, tensor), keep_sent=False
    )
    read, _ = finish(reading, [(1.0, next(reading).unpack(messages[0].pack()))])
    expect(torch.equal(read, result), "a message reads differently in another step; declare follows_clock")


def _results(compressor: Compressor, start: int) -> Tensor:
    """What comes of a rule's first steps."""
    state, found = slots(compressor, drawn(3)), []
    for step in range(_FIRST_STEPS):
        coding = compressor.encode_decode(context(step=step, start=start), drawn(step), state, keep_sent=True)
        found.append(ended(coding)[1])
    return torch.cat(found)


def facts_hold(draws: int = 300) -> Mapping[str, Callable[[Compressor], None]]:
    """What is looked at, by name; `draws` is the number of codings whose mean is."""
    return {
        "messages": compressors_hold.messages_are_declared,
        "ranks": compressor_repeats.ranks_do_alike,
        "weights": compressors_hold.weights_are_kept,
        "values": compressors_hold.values_are_declared,
        "loss": compressors_hold.loss_is_declared,
        "bias": wraps(bias_is_declared)(partial(bias_is_declared, draws=draws)),
        "scope": scope_is_declared,
        "largest norm": largest_norm_is_declared,
        "linearity": linearity_is_declared,
        "memory": compressor_memory.memory_is_declared,
        "results": results_are_followed_as_declared,
        "clock": clock_is_declared,
        "finite": finite_is_kept_as_declared,
        "state": compressor_repeats.state_is_all,
        "slots": compressor_repeats.slots_are_assigned,
        "hard inputs": compressors_hold.hard_inputs_are_survived,
        "carried": slots_hold.compressor_slots,
    }


compressor_checks = checks_of(facts_hold())
"""The checks of a compressor, by name."""

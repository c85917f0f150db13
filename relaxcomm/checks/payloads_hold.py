"""Checks of payloads: each declared fact against what is read and written."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from relaxcomm.checks.conduct import checks_of, expect_from_start, slots_assigned
from relaxcomm.checks.finding import expect
from relaxcomm.checks.payload_trial import NUMEL, PayloadTrial, heard
from relaxcomm.checks.slots_hold import expect_equal, expect_means, expect_stated
from relaxcomm.data.clients import CLIENT
from relaxcomm.roles import Payload
from relaxcomm.roles.payload import read_as


def reading_is_declared(payload: Payload) -> None:
    """What is read is as declared: where, whether it is the model, how many entries, and of which type."""
    facts = payload.facts
    trial = PayloadTrial(payload).moved(0.5)
    there, one, other = trial.parameters, trial.read(3.0), PayloadTrial(payload).moved(0.5).read(-7.0)
    trial.write(trial.finalize(one / 2))
    follows = not torch.equal(one, other)
    expect(
        follows == (facts.site == "backward"),
        f"declares to be read at {facts.site}, but is {'' if follows else 'not '}made of the gradient",
    )
    is_model = torch.equal(one, there) and torch.equal(trial.moved(0.25).read(3.0), trial.parameters)
    expect(is_model == facts.is_model, f"declares is_model={facts.is_model}, but it is {is_model}")
    for dtype in (torch.bfloat16, torch.float64):
        declared = read_as(payload, dtype)
        made = PayloadTrial(payload, dtype=dtype).moved(0.5).read(3.0).dtype
        said = f"declares wide={facts.wide}, but reads {made} of {dtype}, and not {declared}"
        expect(made == declared, said)


def momentum_is_declared(payload: Payload) -> None:
    """What is read later without a gradient follows from a result, or not: it may be noise all the same."""
    declared, kept = payload.facts.is_momentum, False
    if payload.facts.site == "backward":
        one, other = PayloadTrial(payload), PayloadTrial(payload)
        one.gradient(one.finalize(one.read(2.0) / 2))  # beside a worker that has none
        other.gradient(other.finalize(other.read(-7.0) / 2))
        kept = not torch.equal(one.read(0.0), other.read(0.0))
    what = "something of earlier gradients or results" if kept else "nothing of what was before"
    expect(kept == declared, f"of a gradient of 0 it reads {what}: declare is_momentum={kept}")


def move_is_declared(payload: Payload) -> None:
    """If declared to be a move, it reads the same wherever the parameters and what it keeps of them lie."""
    near, far = (PayloadTrial(payload, value).moved(0.5).read(3.0) for value in (1.0, 2.0))
    found, declared = torch.equal(near, far), payload.facts.is_move
    how = "does not depend" if found else "depends"
    expect(found == declared, f"what it reads {how} on where the parameters are: declare is_move={found}")


def base_is_declared(payload: Payload) -> None:
    """It has a base, which goes along with the results, if it declares one, and none otherwise."""
    trial = PayloadTrial(payload)
    before = trial.base()
    found = before is not None
    expect(found == payload.facts.has_base, f"declares has_base={payload.facts.has_base}, but it is {found}")
    trial.moved(0.5)
    trial.write(trial.finalize(trial.read(3.0)) - 1)
    after = trial.base()
    stays = before is not None and after is not None and torch.equal(before, after)
    expect(not stays, "its base stays where it was after a result: in write, assign what came of it")


def writing_is_declared(payload: Payload) -> None:
    """A result moves the parameters as declared, and as much of what they were stays."""
    facts = payload.facts
    one, other = PayloadTrial(payload).moved(0.0), PayloadTrial(payload).moved(0.0)
    for trial, by in ((one, 0.25), (other, 0.75)):
        trial.bucket.scatter(trial.parameters + by)
    before, written = one.parameters, (one.write(5.0), other.write(5.0))
    moves = not torch.equal(written[0], before)
    expect(moves == facts.moves_model, f"declares moves_model={facts.moves_model}, but it is {moves}")
    keeps = moves and not torch.equal(*written)
    expect(keeps == facts.keeps_local, f"declares keeps_local={facts.keeps_local}, but it is {keeps}")


def scale_is_undone(payload: Payload) -> None:
    """What a GradScaler multiplies gradients by is not in what is read, and is in what becomes `.grad`."""
    _step_is_scaled(payload)
    if payload.facts.site != "backward" or payload.facts.moves_model:
        return
    of_half = torch.ones(NUMEL)
    of_half[: NUMEL // 2] = 4.0  # the loop has unscaled the others
    plain, scaled = PayloadTrial(payload), PayloadTrial(payload)
    for gradient, scale in ((3.0, torch.tensor(1024.0)), (-5.0, of_half)):
        scaled.cx = scaled.cx.at(gradient_scale=scale)
        one, other = plain.read(gradient), scaled.read(gradient * scale)
        at = int((one - other).abs().argmax())
        expect(
            torch.allclose(one, other),
            f"reads {one[at]:g} of a gradient of {gradient:g}, but {other[at]:g} where a GradScaler made it "
            f"{gradient * scale.max():g}: in read, divide out by cx.gradient_scale unless that is None",
        )
        result = plain.finalize(one)
        becomes, becomes_scaled = plain.gradient(result), scaled.gradient(scaled.finalize(other))
        at = int((becomes * scale - becomes_scaled).abs().argmax())
        expect(
            torch.allclose(becomes * scale, becomes_scaled),
            f"gives .grad {becomes[at]:g}, and {becomes_scaled[at]:g} where a GradScaler divides it by "
            f"{scale.max():g} later: in write, multiply value by cx.gradient_scale unless that is None",
        )


def _step_is_scaled(payload: Payload) -> None:
    """What it adds just before a step is as much larger as the gradients are."""
    added = []
    for scale in (1.0, 1024.0):
        trial = PayloadTrial(payload, dtype=torch.float64).moved(0.5)
        trial.gradient(trial.finalize(trial.read(3.0) / 2))  # after an exchange it may have more to add
        added.append(trial.moved(0.25).stepped(scale) - scale)
    at = int((added[0] * 1024 - added[1]).abs().argmax())
    expect(
        torch.allclose(added[0] * 1024, added[1]),
        f"adds {added[0][at]:g} to a gradient just before the step, and {added[1][at]:g} where a GradScaler "
        "made it 1024 times as large: in before_step, multiply by cx.gradient_scale unless that is None",
    )


def event_is_declared(payload: Payload) -> None:
    """An event changes what it keeps if it waits for one, and nothing if it does not hear of it."""
    facts, noted = payload.facts, set()
    for event in {CLIENT, facts.event or CLIENT, *heard(payload)}:
        trial = PayloadTrial(payload)
        trial.bucket.scatter(trial.parameters + 0.5)
        before = {name: slot.clone() for name, slot in trial.state.items()}
        trial.tell(event)
        if any(not torch.equal(slot, before[name]) for name, slot in trial.state.items()):
            noted.add(event)
    unheard = noted - facts.hears
    expect(not unheard, f"declares to hear {sorted(facts.hears)}, but takes note of {_named(unheard)}")
    if facts.event is None:  # it may take note of a loop's own events in passing
        expect(CLIENT not in noted, f"declares to wait for no event, but takes note of {CLIENT!r}")
    elif events := _named(heard(payload)):
        expect(
            bool(noted), f"declares to wait for {facts.event!r}, but {events} changes nothing that it keeps"
        )


def _named(events: Iterable[str]) -> str:
    return " and ".join(map(repr, sorted(events)))


def nan_is_shown(payload: Payload) -> None:
    """What is not a number is so in what is read and in what is made of a result, or no rank would notice."""
    by, follows_gradient = torch.zeros(NUMEL), payload.facts.site == "backward"
    by[3] = torch.nan
    trial = PayloadTrial(payload)
    kept = [torch.full_like(one, torch.nan) for one in trial.bucket.tensors]
    trial.cx = trial.cx.at(optimizer_state=lambda bucket, slots: kept)
    found = trial.moved(0.5 if follows_gradient else by).read(1.0 + by)
    came = "reads finite numbers of a {} that has NaN, so no rank would notice; leave NaN as it is"
    expect(not found.isfinite().all(), came.format("gradient" if follows_gradient else "parameter"))
    hidden = bool(PayloadTrial(payload).moved(0.5).finalize(found).isfinite().all())
    expect(not hidden, "makes finite numbers of a result that has NaN; leave NaN as it is")


def one_entry_is_enough(payload: Payload) -> None:
    """A bucket of one entry, such as a scale, is read and written, and one in which nothing has moved."""
    trial = PayloadTrial(payload, numel=1).moved(0.5)
    made = trial.finalize(trial.read(1.5))
    trial.gradient(made)
    finite = bool(made.isfinite().all() and trial.parameters.isfinite().all())
    expect(finite, "of a bucket of one entry it makes numbers that are not finite")
    finite = bool(PayloadTrial(payload).read(0.0).isfinite().all())
    expect(
        finite,
        "reads numbers that are not finite where nothing has moved, or gradients are 0: divide by no 0",
    )


def weight_is_divided_out(payload: Payload) -> None:
    """Where it sends its weight along, a worker alone comes to the same with any weight."""
    made = []
    for samples in (4, 8) if payload.facts.extra_entries else ():
        trial = PayloadTrial(payload, samples=samples).moved(0.5)
        made.append(trial.finalize(trial.read(3.0)))
    off = float((made[0] - made[1]).abs().max()) if made else 0.0
    expect(
        off < 1e-5,
        f"what a worker alone comes to is {off:.3g} off with twice the samples: a weight that is sent along "
        "has to cancel out, so let finalize divide by what came back of it, such as result[:-1] / result[-1]",
    )


def slots_are_assigned(payload: Payload) -> None:
    """A slot changes by assignment, and keeps its type where parameters are short."""
    for trial in (PayloadTrial(payload), PayloadTrial(payload, dtype=torch.bfloat16)):
        for step in range(4):
            with slots_assigned(trial.state):
                value, base = trial.finalize(trial.moved(0.5).read(float(step))), trial.base()
                trial.gradient(value if base is None else value.to(base.dtype))


def steps_count_from_the_first(payload: Payload) -> None:
    """In a rule that begins late it makes of results what it makes in one that begins at once."""

    def made(start: int) -> Tensor:
        trial, found = PayloadTrial(payload), list[Tensor]()
        for step in range(4):
            trial.cx = trial.cx.at(step=start + step, start=start)
            result = trial.finalize(trial.moved(0.5).read(float(step)) / 2)
            trial.gradient(result)
            found.append(result)
        return torch.cat(found)

    expect_from_start(made)


def slots_are_declared(payload: Payload) -> None:
    """Each slot is declared; what should be equal is, on ranks that have moved apart and get one result."""
    trials, slots = [PayloadTrial(payload).moved(by) for by in (0.25, 0.75)], payload.facts.slots
    states = [trial.state for trial in trials]
    result = torch.stack([trial.read(by) for trial, by in zip(trials, (0.25, 0.75), strict=True)]).mean(0)
    expect_equal(states, slots)
    for trial in trials:
        trial.gradient(trial.finalize(result.clone()))
    expect_stated(states[0], slots)
    expect_equal(states, slots)
    expect_means(states, slots)


payload_checks = checks_of(
    {
        "reading": reading_is_declared,
        "momentum": momentum_is_declared,
        "move": move_is_declared,
        "base": base_is_declared,
        "writing": writing_is_declared,
        "gradient scale": scale_is_undone,
        "event": event_is_declared,
        "NaN": nan_is_shown,
        "weight": weight_is_divided_out,
        "one entry": one_entry_is_enough,
        "start": steps_count_from_the_first,
        "slots": slots_are_assigned,
        "carried": slots_are_declared,
    }
)
"""The checks of a payload, by name."""

"""What exchanges of parameters bring: written to the model and kept, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaxcomm.errors import NonFiniteError
from relaxcomm.network.operations import Label
from relaxcomm.roles.returned import added
from relaxcomm.step.agreements import Answer
from relaxcomm.step.bound import Bound
from relaxcomm.step.device_flags import PutIn
from relaxcomm.step.finite import NOT_FINITE, local_error, named, non_finite_error, spoilt
from relaxcomm.step.flight import land_all
from relaxcomm.step.frozen_since import agree_on_rest
from relaxcomm.step.plan import Task
from relaxcomm.step.transfer import Transfer
from relaxcomm.step.world import flag_of
from relaxcomm.tensors.finiteness import all_finite, is_finite

_ANOTHER = "another shard of its replica"


@dataclass(frozen=True)
class Sent:
    """Transfers of a rule that were sent together.

    Args:
        transfers: on their way.
        others: whether any rank has put in what is not finite; on its way with them.
    """

    transfers: Sequence[Transfer]
    others: Answer | None = None

    def split(self, step: int, arrived: Collection[Transfer]) -> tuple[Sent, Sent]:
        """The results that are applied in a step, as they are due then or have arrived, and the others."""
        due = [transfer for transfer in self.transfers if transfer.due <= step or transfer in arrived]
        left = [transfer for transfer in self.transfers if transfer not in due]
        return Sent(due, self.others), Sent(left, self.others)


def arrived(bound: Bound, late: Sequence[Sent]) -> list[Transfer]:
    """The results without a due step that have come, of all shards of this replica.

    Asked once a step, as one may arrive in between.
    """
    out = [one for sent in late for one in sent.transfers if math.isinf(one.due)]
    here, world = [one.flight.has_arrived() for one in out], bound.world
    if out and world.is_sharded:
        label = Label(bound.clock.step, "what has arrived")
        on_its_way = world.over_shards(1 - torch.tensor(here, dtype=torch.float64), label, "max")
        here = [not flag for flag in on_its_way.tolist()]
    return [one for one, is_there in zip(out, here, strict=True) if is_there]


def is_looked_at(task: Task) -> bool:
    """Whether `look_at` looks at what is sent: the host waits for no GPU, so it is always asked there."""
    facts = task.rule.exchange.facts
    return task.bucket.device.type == "cuda" or not (facts.same_result and facts.collective)


def look_at(bound: Bound, task: Task, tensor: Tensor) -> list[str] | PutIn:
    """What of a bucket is not finite before it is sent, where results do not show it on all ranks; on a GPU
    the host does not wait to know.

    Raises: NonFiniteError where nobody waits for this rank, so that it must not reach those who go on.
    """
    exchange, bucket = task.rule.exchange, task.bucket
    if not is_looked_at(task):
        return []
    if bucket.device.type == "cuda" and exchange.facts.collective:
        return PutIn.of(named(bucket, task.rule.payload.words), bucket.views(tensor[: bucket.numel]))
    found = [] if is_finite(tensor) else _spoilt(task, tensor) or ["what is sent"]
    if exchange.facts.collective:
        return found
    if bound.world.is_any_shard(bool(found), Label(bound.clock.step, NOT_FINITE)):
        so = "nothing was sent, and no other rank has it"
        raise local_error(found or [_ANOTHER], bound.world.rank, bound.clock.step, so)
    return []


def ask_finite(bound: Bound, made: Sequence[Transfer]) -> Answer | None:
    """Ask whether a rank has put in NaN, beside an exchange that brings ranks different results."""
    task = made[0].task
    if not (task.results_differ and task.rule.compressor.facts.keeps_finite):
        return None
    is_bad: bool | Tensor = any(transfer.not_finite for transfer in made)
    if _on_gpu(made[0]):
        is_bad = ~torch.cat([one.put_in.good for one in made if one.put_in is not None]).all()
    answer = bound.agreements.ask_where_it_lies(NOT_FINITE, flag_of(is_bad), bound.common_step)
    bound.agreements.send(bound.common_step)
    return answer


def apply(bound: Bound, sent: Sequence[Sent]) -> bool:
    """Write results to the model and keep state, all or nothing.

    Returns: whether this rank, which has asked only itself, was met by others.

    Raises: NonFiniteError if a result is not finite here, or, where ranks get different ones, on any rank.
    """
    made = [transfer for one in sent for transfer in one.transfers]
    if not made:
        return False
    bound.replica.reshard()
    land_all(transfer.flight for transfer in made)
    good = _decide_on_gpu(bound, sent, made) if _on_gpu(made[0]) else _check_on_host(bound, sent, made)
    have_met = [_has_met(bound, transfer) for transfer in made]
    for transfer, has_met in zip(made, have_met, strict=True):
        if has_met and transfer.sent is not None:
            bound.world.statistics.latest["staleness_steps"] = bound.clock.step - transfer.sent
    sides = ((t.side, t.result if has_met else None) for t, has_met in zip(made, have_met, strict=True))
    bound.norms.compare((side, result) for side, result in sides if side is not None)
    finalized, sums = _measure(bound, made)
    resting = agree_on_rest(bound, [(transfer.task, transfer.result) for transfer in made])
    for index, transfer in enumerate(made):
        task = transfer.task
        if not task.of_buffers and bound.controllers.watches(task.index):
            cx = bound.context(task.index)
            bound.controllers.observe(task.index, cx, task.bucket.index, None, transfer.result)
        known = finalized.get(index)
        transfer.apply(
            transfer.finalize(transfer.result) if known is None else known,
            measured=None if known is None else sums[task.index, transfer.due],
            resting=resting[index],
            good=good,
        )
        transfer.commit(good)
    bound.controllers.ask(bound.context)
    bound.agreements.send(bound.common_step)
    return any(has_met and not t.flight.sends for t, has_met in zip(made, have_met, strict=True))


def _has_met(bound: Bound, transfer: Transfer) -> bool:
    """Whether others have a part in a result; where this rank has asked only itself, its service knows."""
    service = bound.state.services.get(transfer.task.key)
    return transfer.flight.sends or service is None or service.has_met()


def _on_gpu(transfer: Transfer) -> bool:
    """Whether what it moves lies where the host would have to wait for it."""
    return transfer.task.bucket.device.type == "cuda"


def _check_on_host(bound: Bound, sent: Sequence[Sent], made: Sequence[Transfer]) -> bool:
    """True; raises NonFiniteError otherwise."""
    bad = [transfer for transfer in made if not is_finite(transfer.result)]
    if _is_any_bad(bound, sent, bool(bad)):
        for transfer in made:
            transfer.commit(False)
        raise _error(bound, made, bad)
    return True


def _decide_on_gpu(bound: Bound, sent: Sequence[Sent], made: Sequence[Transfer]) -> Tensor:
    """Whether all ranks have finite results, a scalar on the device; an error comes later if not."""
    good = all_finite(transfer.result for transfer in made)
    for one in sent:
        if one.others is not None:
            good = good & (one.others.read() == 0).all()
        elif any(transfer.task.results_differ for transfer in one.transfers):
            others = bound.agreements.ask_where_it_lies(NOT_FINITE, flag_of(~good), bound.common_step)
            good = (others.read() == 0).all()
    if bound.world.is_sharded:
        bad = bound.world.over_shards(flag_of(~good), Label(bound.common_step, NOT_FINITE))
        good = (bad == 0).all()
    put_in = [transfer.put_in for transfer in made if transfer.put_in is not None]
    bound.flags.add(good, bound.clock.step, put_in)
    return good


def _measure(
    bound: Bound, made: Sequence[Transfer]
) -> tuple[dict[int, Tensor], dict[tuple[int, float], Tensor]]:
    """What outers that measure want to know before anything is written.

    Returns: finalized results by index in `made`, and the sums over the buckets of each rule's exchange.
    """
    finalized: dict[int, Tensor] = {}
    sums: dict[tuple[int, float], Tensor] = {}
    for index, transfer in enumerate(made):
        if transfer.task.rule.outer.facts.measures:
            result = transfer.finalize(transfer.result)
            outer, key = transfer.task.rule.outer, (transfer.task.index, transfer.due)
            finalized[index] = result
            sums[key] = added(sums.get(key), transfer.measure(result), "measure", outer)
    label = Label(bound.common_step, "what an outer optimizer measures")
    return finalized, {key: bound.world.over_shards(one, label) for key, one in sums.items()}


def _is_any_bad(bound: Bound, sent: Sequence[Sent], bad: bool) -> bool:
    """Whether a result is bad here or, where ranks get different results, on any rank."""
    for one in sent:
        if not any(transfer.task.results_differ for transfer in one.transfers):
            continue
        # Without an answer on its way it is made of what came back: a compressor may overflow, a checkpoint
        # keeps results only.
        if one.others is None:
            bad = bound.agreements.any(bad, NOT_FINITE, bound.common_step)
        else:
            bad = bool(one.others.read().item()) or bad
    return bound.world.is_any_shard(bad, Label(bound.common_step, NOT_FINITE))


def _error(bound: Bound, made: Sequence[Transfer], bad: Sequence[Transfer]) -> NonFiniteError:
    """Who has put in what is not finite: nothing was written yet, so all still have what they sent."""
    step = bound.clock.step
    came = [name for one in bad for name in _spoilt(one.task, one.result)]
    if not all(
        one.task.rule.exchange.facts.collective for one in made
    ):  # the others do not wait for a question
        return local_error(came or [_ANOTHER], bound.world.rank, step, "the exchange gave it back")
    put_in = [name for one in made for name in _spoilt(one.task, _sent_values(one))]
    return non_finite_error(bound.world, put_in, came, step, replica=bound.replica)


def _sent_values(transfer: Transfer) -> Tensor:
    """What this rank has put in, or the parameters that it was made of; read anew."""
    snapshot = transfer.snapshot
    return transfer.read(transfer.task.bucket.temporary()) if snapshot is None else snapshot


def _spoilt(task: Task, flat: Tensor) -> list[str]:
    """What of a bucket's contents is not finite, as errors name it."""
    return spoilt(task.bucket, flat, task.rule.payload.words)

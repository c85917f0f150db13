"""What an algorithm needs in memory, counted on a small model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, product
from operator import mul

import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.network.operations import AllGather, AllToAll, tensors_of
from relaxcomm.network.transport import Membership
from relaxcomm.planner.scenario import Scenario
from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.roles import Context, is_buffer
from relaxcomm.roles.payload import as_read, read_as
from relaxcomm.step.bucket_filling import fill_buckets, stays_in_place
from relaxcomm.step.plan import Plan
from relaxcomm.step.state import RuleState
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.topology import Topology

_BUCKET_BYTES = 1 << 62  # buckets of any size need as much a parameter
_MOST_ENTRIES = 1 << 16  # of the small model, but for very many parameters
_LEAST_ENTRIES = 1 << 10  # of a parameter that is made smaller
_MOST_RANKS = 32  # that are looked at: each may hold what all others send


@dataclass(frozen=True)
class Footprint:
    """Bytes a parameter and worker above the model, `.grad` and the optimizer.

    Args:
        kept: what checkpoints hold, and what a server's part holds.
        buffers: room that stays from step to step and says nothing.
        under_way: what is sent and received besides, and is to be kept next, until the result is applied.
    """

    kept: float
    buffers: float
    under_way: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.kept + self.buffers + self.under_way


def footprint(
    algorithm: Algorithm,
    items: Sequence[Item],
    membership: Membership,
    topology: Topology,
    bucket_bytes: int = Scenario.bucket_bytes,
) -> Footprint:
    """What an algorithm needs for these parameters; what transports copy comes to it, for a moment.

    Args:
        algorithm: whose rules.
        items: the trainable parameters; shapes are enough. State is made and counted for smaller ones.
        membership: rank and world size.
        topology: the configured graph.
        bucket_bytes: capacity of a bucket, which says what gradients have one of their own.

    Raises: CompositionError for fewer parameters than fragments; TopologyError for a world size that the
        topology cannot have.
    """
    sizes = {item.name: item.parameter.numel() for item in items}
    fitted = algorithm.over(sizes)
    small = list(_smaller(items))
    plan = Plan(fitted, small)
    buckets = plan.lay_out(fill_buckets(small, [*sizes], fitted, _BUCKET_BYTES, membership.world_size))
    in_place, counts = _in_place(fitted, items, bucket_bytes, membership.world_size), []
    for bucket in buckets:
        rules = [task.rule for task in plan.every_task if task.bucket is bucket]
        whole = sum(sizes[name] for name in bucket.names)
        copied = 1 - sum(sizes[name] for name in bucket.names if name in in_place) / max(1, whole)
        found = _of_bucket(rules, bucket, membership, topology, copied)
        counts.append([whole / max(1, bucket.numel) * one for one in found])
    return Footprint(*(sum(column) / sum(sizes.values()) for column in zip(*counts, strict=True)))


def footprints(
    algorithm: Algorithm,
    items: Sequence[Item],
    world_size: int,
    topology: Topology,
    bucket_bytes: int = Scenario.bucket_bytes,
) -> dict[int, Footprint]:
    """What the ranks need, see `footprint`: of very many so many that are spread over all, and hubs."""
    ranks = _spread(world_size)
    if len(ranks) < world_size:
        graphs = [
            rule.exchange.topology_override() or topology
            for rule in algorithm.rules
            if rule.exchange.facts.topology == "graph"
        ]
        ranks += sorted({rank for graph in graphs for rank in _extremes(graph, world_size)} - {*ranks})
    return {
        rank: footprint(algorithm, items, Membership(rank, world_size), topology, bucket_bytes)
        for rank in ranks
    }


def mean_footprint(found: Mapping[int, Footprint], world_size: int) -> Footprint:
    """What a rank needs on average: those that are spread stand for all others, see `footprints`."""
    _, *spread = _spread(world_size)
    stand_for = (world_size - len(found) + len(spread)) / max(1, len(spread))
    shares = [stand_for / world_size if rank in spread else 1 / world_size for rank in found]
    columns = zip(*map(astuple, found.values()), strict=True)
    return Footprint(*(sum(map(mul, shares, column)) for column in columns))


def least_and_most(found: Mapping[int, Footprint]) -> tuple[int, int] | None:
    """The ranks that need least and most; None if that is the same within a hundredth."""
    least, most = (pick(found, key=lambda rank: found[rank].whole) for pick in (min, max))
    return None if found[most].whole <= 1.01 * found[least].whole else (least, most)


def _extremes(topology: Topology, size: int) -> Iterator[int]:
    """The ranks that take from, and give to, the fewest and the most others."""
    taken = {rank: len(weights) for rank, weights in topology.weights(size).items()}
    given = Counter(chain.from_iterable(topology.weights(size).values()))
    for pick, degrees in product((min, max), (taken, given)):
        yield pick(degrees, key=degrees.__getitem__)


def _spread(size: int) -> list[int]:
    """Rank 0, with which all others may exchange, and of these so many that are spread over all.

    They are an odd number apart: groups often have an even size, and their first ranks hold more.
    """
    apart = 1 if size <= _MOST_RANKS else -(-size // (_MOST_RANKS - 1)) | 1
    return [0, *range(1, size, apart)]


def _smaller(items: Sequence[Item]) -> Iterator[Item]:
    """The same names and types with less in them: the longest side is halved until it is little."""
    most = max(_LEAST_ENTRIES, _MOST_ENTRIES // len(items))
    for item in items:
        shape = list(item.tensor.shape)
        while math.prod(shape) > most:
            longest = shape.index(max(shape))
            shape[longest] = -(-shape[longest] // 2)
        yield Item(item.name, torch.zeros(shape, dtype=item.tensor.dtype))


def _in_place(algorithm: Algorithm, items: Sequence[Item], bucket_bytes: int, world_size: int) -> set[str]:
    """The parameters whose gradients are exchanged where autograd has put them, each in its own bucket."""
    large = {item.name for item in items if stays_in_place(item, algorithm)}
    if not large:
        return large
    order = [item.name for item in reversed(items)]  # as backward makes gradients
    filled = fill_buckets(items, order, algorithm, bucket_bytes, world_size)
    return {names[0] for names in filled if len(names) == 1 and names[0] in large}


def _of_bucket(
    rules: Sequence[Rule], bucket: Bucket, membership: Membership, topology: Topology, copied: float
) -> tuple[float, float, float]:
    """Bytes kept, of buffers, and under way; `copied` is the share of it whose gradients have a buffer."""
    kept = buffers = 0.0
    under_way = [0]  # rules take turns
    cx = Context(0, 0, membership, _no_rate, topology=topology, layout=bucket.layout, bucket_part=(0,))
    for rule in rules:
        state = RuleState(rule, bucket, membership)
        for name, value in (pair for made in state.values() for pair in made.items()):
            if is_buffer(name):
                buffers += value.nbytes
            else:
                kept += value.nbytes
        served = rule.exchange.serve(cx, as_read(rule.payload, bucket), rule.compressor, rule.outer)
        if served is not None:
            kept += sum(value.nbytes for value in served.service.export().values())
            buffers += served.request.nbytes + served.reply.nbytes
        # After a step all but the compressors' are kept bucket by bucket.
        kept_later = ("compressor",) if rule.payload.facts.site == "step" else state
        anew = sum(value.nbytes for role in kept_later for value in state[role].saved.values())
        under_way.append(_under_way(rule, bucket, state, cx) + anew)
    if any(rule.payload.facts.site == "backward" for rule in rules):
        buffers += copied * GradientBuffer(bucket).whole.nbytes
    return kept, buffers, max(under_way)


def _under_way(rule: Rule, bucket: Bucket, state: RuleState, cx: Context) -> int:
    """What one exchange sends and receives, and what a late result needs besides."""
    message = torch.zeros(bucket.numel, dtype=read_as(rule.payload, bucket.dtype))
    running = rule.exchange.run(cx, message, rule.compressor, state["compressor"])
    operation = next(running, None)  # none of a rank that is alone, maybe
    running.close()
    held = () if operation is None else (one.untyped_storage() for one in tensors_of(operation))
    storages = {one.data_ptr(): one.nbytes() for one in held}
    storages.pop(message.untyped_storage().data_ptr(), None)
    one = sum(storages.values())
    if isinstance(operation, AllGather | AllToAll):
        rows = cx.membership.world_size if isinstance(operation, AllGather) else 1
        one += rows * operation.tensor.nbytes
    if not rule.outer.facts.moves_model:  # what lies in `.grad` stays there
        one += message.nbytes
    at_step = rule.payload.facts.site == "step"
    if not rule.delay:
        return one + at_step * message.nbytes  # the message itself
    if at_step:
        return one + 2 * message.nbytes  # the same, and the parameters as they were then
    return int(rule.delay) * (one + message.nbytes)


def _no_rate(bucket: Bucket) -> float:
    raise AssertionError("no exchange asks for a learning rate")

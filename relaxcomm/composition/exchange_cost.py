"""What one exchange costs a worker: bytes, operations, and the processor's time."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from relaxcomm.fields.looked_at import error
from relaxcomm.network.operations import AllReduce, Request
from relaxcomm.network.traffic import messages
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.roles import Compressor, Exchange, Stage
from relaxcomm.roles.stage import Pairs, is_size
from relaxcomm.tensors.layout import Layout
from relaxcomm.topology import Topology


@dataclass(frozen=True)
class Speeds:
    """How much a worker's processor has to do for exchanges; measured on CPUs unless given.

    Args:
        work_base_seconds: of an operation of an exchange, beside coding.
        work_byte_seconds: of a byte that is sent.
        coding_base_seconds: of coding a bucket, there and back.
        coding_entry_seconds: of an entry of it.

    Example:
        >>> from relaxcomm.plugin import Speeds, exchange_cost, one_tensor
        >>> from relaxcomm.primitives import complete, quantize, scatter_gather
        >>> coder, fast = quantize(bits=8), Speeds(coding_base_seconds=0.0, coding_entry_seconds=1e-9)
        >>> model = one_tensor(1_000_000)
        >>> exchange_cost(scatter_gather(), coder, model, 4, 4, complete(), speeds=fast).coding_seconds
        0.001
    """

    work_base_seconds: float = 4e-3
    work_byte_seconds: float = 1e-9
    coding_base_seconds: float = 5e-3
    coding_entry_seconds: float = 8e-9

    @classmethod
    def usual(cls, device_type: str) -> Speeds:
        """Where nothing is measured: those of CPUs, and for "cuda" those of an H200, whose slowest compressor
        takes 30 ps an entry (`top_k`; `quantize` and `gaussian_k` 4), and half a millisecond for launches.

        Example:
            >>> from relaxcomm.plugin import Speeds
            >>> Speeds.usual("cpu") == Speeds(), Speeds.usual("cuda").coding_base_seconds
            (True, 0.0005)
        """
        if device_type != "cuda":
            return cls()
        return cls(coding_base_seconds=5e-4, coding_entry_seconds=3e-11)


@dataclass(frozen=True)
class ExchangeCost:
    """What one exchange of a bucket costs a worker.

    Args:
        sent_bytes: that a worker hands to the network, answers among them.
        operations: that follow each other.
        work_seconds: of its processor, beside coding; they hide behind nothing.
        coding_seconds: of its processor, there and back.
        answer_bytes: of those that are sent, the answers to what others ask.
        latencies: how many times the messages that wait for each other are those of one all-reduce.

    Example:
        >>> from relaxcomm.plugin import exchange_cost, one_tensor
        >>> from relaxcomm.primitives import all_reduce, complete, identity
        >>> cost = exchange_cost(all_reduce(), identity(), one_tensor(1_000_000), 4, 4, complete())
        >>> cost.sent_bytes, round(cost.link_seconds(0.001, 12.5e6), 3)
        (6000000.0, 0.481)
    """

    sent_bytes: float
    operations: int
    work_seconds: float
    coding_seconds: float
    answer_bytes: float = 0.0
    latencies: float = 1.0

    def link_seconds(self, latency_seconds: float, bytes_per_second: float) -> float:
        """From the moment when the last worker begins until all is there.

        Args:
            latency_seconds: of an all-reduce, see `Measured`.
            bytes_per_second: at which a worker's bytes leave it.
        """
        return self.latencies * latency_seconds + self.sent_bytes / bytes_per_second


@functools.lru_cache(maxsize=256)  # each step asks for each bucket
def stages_of(
    exchange: Exchange, world_size: int, topology: Topology, *, exact: bool = False
) -> tuple[Stage, ...]:
    """What an exchange declares of its operations; `exact` where means of halves are rounded once.

    Raises: PluginError unless they are stages, in a list or a tuple.
    """
    method = "exact_stages" if exact else "stages"
    made: object = getattr(exchange, method)(world_size, topology)
    if isinstance(made, list | tuple) and all(isinstance(one, Stage) for one in made):
        return tuple(made)
    raise error(made, "return a list of a Stage for each operation", method, exchange)


def pairs_of(stage: Stage, exchange: Exchange, world_size: int) -> Pairs:
    """Who sends to whom in a stage that says so, and how much, in proportion.

    Raises: PluginError unless they are ranks, and numbers of which one is above 0.
    """
    made: object = stage.pairs() if stage.pairs is not None and stage.share else {}
    ranks = {*range(world_size)}
    if (
        isinstance(made, Mapping)
        and all(isinstance(pair, tuple) and len(pair) == len({*pair} & ranks) == 2 for pair in made)
        and all(map(is_size, made.values()))
        and (any(made.values()) or not stage.share)
    ):
        return made
    wanted = f"return {{(rank, other): part}}, of two ranks below {world_size} and 0 or more, not 0 for all"
    raise error(made, wanted, "pairs", exchange)


def exchange_cost(
    exchange: Exchange,
    compressor: Compressor,
    layout: Layout,
    element_bytes: int,
    world_size: int,
    topology: Topology,
    *,
    speeds: Speeds | None = None,
    crowding: float = 0.0,
    exact: bool = False,
) -> ExchangeCost:
    """What one exchange of a bucket costs a worker, on average over the workers.

    Args:
        exchange: over what.
        compressor: of what is sent.
        layout: of the bucket.
        element_bytes: of an entry.
        world_size: number of workers.
        topology: the configured graph.
        speeds: of a worker's processor.
        crowding: seconds that a second of a worker's processor time takes, see `Measured`.
        exact: whether means are rounded once, as those of parameters are, see `Context`.

    Example:
        >>> from relaxcomm.plugin import exchange_cost, one_tensor
        >>> from relaxcomm.primitives import all_gather, all_reduce, complete, identity, top_k
        >>> few = top_k(density=0.1)  # among many workers gathering few entries costs more than reducing all
        >>> pairs = (all_reduce(), identity()), (all_gather(), few)
        >>> model = one_tensor(1000)
        >>> [round(exchange_cost(*pair, model, 4, 50, complete()).sent_bytes) for pair in pairs]
        [7840, 39396]
    """
    speeds = speeds or Speeds()
    coded = exchange.coded_bytes(compressor, layout, element_bytes, world_size)
    if not is_size(coded):
        raise error(coded, "return a number of bytes, 0 or more", "coded_bytes", exchange, compressor)
    exact = exact and is_of_halves(compressor, layout, element_bytes)
    stages = stages_of(exchange, world_size, topology, exact=exact)
    graph = exchange.topology_override() or topology
    shares = [(stage.sent(world_size, graph), stage) for stage in stages]
    answered = sum(share * stage.answer for share, stage in shares if stage.kind is Request)
    answers = answered * layout.numel * max(4, element_bytes)  # what ranks serve is float32 at least
    sent = sum(share for share, _ in shares) * coded + answers
    coding = speeds.coding_base_seconds + speeds.coding_entry_seconds * layout.numel
    operations = compressor.facts.rounds * max(1, len(stages))  # of one rank alone maybe none
    in_turn = compressor.facts.rounds * sum(messages(stage.kind, world_size) for stage in stages)
    return ExchangeCost(
        sent_bytes=sent,
        operations=operations,
        work_seconds=crowding * (speeds.work_base_seconds * operations + speeds.work_byte_seconds * sent),
        coding_seconds=0.0 if compressor == identity() else max(1.0, crowding) * coding,
        answer_bytes=answers,
        latencies=in_turn / max(1, messages(AllReduce, world_size)),
    )


def is_of_halves(compressor: Compressor, layout: Layout, element_bytes: int) -> bool:
    """Whether the numbers of a message have two bytes each, as in float16 and bfloat16.

    Example:
        >>> from relaxcomm.plugin import one_tensor
        >>> from relaxcomm.primitives import cast, identity, random_k
        >>> coders = identity(), cast(dtype="bfloat16"), random_k(density=0.5)
        >>> [is_of_halves(one, one_tensor(100), element_bytes=4) for one in coders]
        [False, True, False]
    """
    values = compressor.without_memory.layout_values(layout, element_bytes)
    if values is None:  # they are not counted, but then all are there, as in a chain with cast
        return compressor.layout_bytes(layout, element_bytes) == 2 * layout.numel
    return values[1] == 2

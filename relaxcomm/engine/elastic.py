"""Ranks that are lost: those who are left agree to go on, in a world of their own."""

from __future__ import annotations

import sys
from dataclasses import replace

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import ConfigError, RankLostError
from relaxcomm.network import TorchTransport, Transport
from relaxcomm.network.generations import Generations
from relaxcomm.step.world import World


class Elastic:
    """Makes the world of the next generation.

    Args:
        transport: of the first one.
        timeout_seconds: how long a rank is waited for that may still come.
    """

    def __init__(self, transport: TorchTransport, timeout_seconds: float) -> None:
        self._generations = Generations(transport.place, timeout_seconds)

    @property
    def number(self) -> int:
        """Of the generation that trains now."""
        return self._generations.current.number

    @property
    def lost(self) -> dict[int, str]:
        """What became of those that were left behind with the last change, by their first rank."""
        return self._generations.current.lost

    def next_world(self, world: World) -> World:
        """Agree on who goes on, and meet them.

        Raises: CommunicationError if this rank is not among them.
        """
        transport = world.transport
        assert isinstance(transport, TorchTransport), "other networks lose no ranks"
        transport.give_up()
        while True:
            place = self._generations.follow()
            try:
                return replace(world, transport=transport.at(place))
            except RankLostError:  # another is lost: those who are left agree anew
                continue

    def leave(self, status: str) -> None:
        """This rank takes part no more."""
        self._generations.leave(status)

    def say(self, step: int, size: int) -> None:
        """Say who is lost, and how many go on."""
        who = "; ".join(f"rank {rank} {how}" for rank, how in self.lost.items())
        ranks = "1 rank goes" if size == 1 else f"{size} ranks go"
        print(f"relaxcomm: {who}: {ranks} on from step {step}", file=sys.stderr, flush=True)


def check_elastic(algorithm: Algorithm, transport: Transport) -> None:
    """Refuse what could not go on without a rank.

    Raises: ConfigError.
    """
    # A simulated link would be left behind with the first generation.
    if type(transport) is not TorchTransport or transport.backend != "gloo":
        raise ConfigError("membership.elastic: ranks can be lost and go on over gloo alone; leave it out")
    for index, rule in enumerate(algorithm.rules):
        if not rule.exchange.facts.collective:
            raise ConfigError(
                f"membership.elastic: rule {index} of {algorithm.name} asks {rule.exchange!r}, and nobody "
                "has a copy of what a lost rank has held for the others; choose an algorithm without, or "
                "leave it out"
            )
    if algorithm.round_plan is not None or algorithm.needs:
        raise ConfigError(
            f"membership.elastic: {algorithm.name} chooses the batches, which a loader follows from the "
            "beginning to the end among the same ranks; choose another algorithm, or leave it out"
        )

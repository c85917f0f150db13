"""Ranks come and go: those who train agree on who goes on, in a world of their own."""

from __future__ import annotations

from dataclasses import replace

from relaxcomm.config import Config
from relaxcomm.errors import CommunicationError, ConfigError, RankLostError
from relaxcomm.network import TorchTransport, Transport
from relaxcomm.network.generations import Generation, Generations
from relaxcomm.network.meeting_place import MeetingPlace
from relaxcomm.step.world import World
from relaxcomm.system.telling import tell
from relaxcomm.tensors import buffer_pool


class Elastic:
    """Makes the world of the next generation.

    Args:
        generations: on which the workers agree.
        timeout_seconds: how long a worker waits to be admitted.
        quorum: the least number of ranks that go on.
    """

    def __init__(self, generations: Generations, timeout_seconds: float, quorum: int) -> None:
        self._generations, self._timeout_seconds, self._quorum = generations, timeout_seconds, quorum

    @classmethod
    def begin(cls, place: MeetingPlace, settings: Config) -> Elastic:
        """In generation 0.

        Args:
            place: where its ranks have met.
            settings: of the run.
        """
        membership, limit = settings.membership, settings.timeout_seconds
        patience = membership.grace_seconds or limit
        return cls(Generations(place, place.membership.world_size, patience), limit, membership.quorum)

    @property
    def generation(self) -> Generation:
        """The one that trains now."""
        return self._generations.current

    def next_world(self, world: World, newest: int) -> World:
        """Agree on who goes on, and meet them.

        Args:
            world: before.
            newest: newcomers up to this one are admitted.

        Raises: GivenUpError if this rank is not among them; CommunicationError if they are too few.
        """
        while True:
            place = self._generations.follow(newest)
            self._check_quorum()
            try:
                return self.at(world, place)
            except RankLostError:  # another is lost: those who are left agree anew
                continue

    def at(self, world: World, place: MeetingPlace) -> World:
        """The same among those who meet at a place."""
        assert isinstance(world.transport, TorchTransport), "other networks lose no ranks"
        return replace(world, transport=world.transport.at(place))

    def join(self) -> MeetingPlace:
        """Ask to be admitted as a new worker; where all meet then.

        Raises: CommunicationError or ConfigError if it is not admitted.
        """
        self._generations.ask()
        return self._generations.wait_for_admission(self._timeout_seconds)

    def newest(self) -> int:
        """The last worker that asks to be admitted, or -1."""
        return self._generations.newest()

    def refuse(self, newest: int, why: str, *, says: bool) -> None:
        """Do not admit those who have asked; every rank calls it, and one says so to them."""
        self._generations.refuse(newest, why, says=says)

    def give_up(self, world: World) -> None:
        """Let go of operations that will never end."""
        assert isinstance(world.transport, TorchTransport), "other networks lose no ranks"
        world.transport.give_up()
        buffer_pool.release()  # an operation that was given up may still write to what it was handed

    def leave(self, status: str) -> None:
        """This rank takes part no more."""
        self._generations.leave(status)

    def say(self, step: int, *, in_order: bool) -> None:
        """Say who was lost and who has joined, and how many go on.

        Args:
            step: from which they go on.
            in_order: whether nothing that was under way was given up.
        """
        now = self.generation
        changes = [f"rank {rank} {how}" for rank, how in now.lost.items()]
        changes += [f"worker {worker} joins" for worker in now.joined]
        if not changes and in_order:  # who has asked has ended before it joined
            return
        if not changes:
            changes = ["a rank was late, so what was under way is given up, but none is lost"]
        size = len(now.workers)
        ranks = "1 rank goes" if size == 1 else f"{size} ranks go"
        tell(f"{'; '.join(changes)}: {ranks} on from step {step}")

    def _check_quorum(self) -> None:
        size = len(self.generation.workers)
        if size < self._quorum:
            lost = "; ".join(f"rank {rank} {how}" for rank, how in self.generation.lost.items())
            raise CommunicationError(
                f"{size} of the workers are left, fewer than membership.quorum: {self._quorum} ({lost}); "
                "start the run again from a checkpoint"
            )


def check_elastic(transport: Transport) -> None:
    """Refuse a network that could not go on with other ranks.

    Raises: ConfigError.
    """
    if transport.shards is not None:
        raise ConfigError(
            "membership.elastic: with each rank a part of a sharded model is lost, so that its replica "
            "cannot go on; leave it out, and save checkpoints"
        )
    # A simulated link would be left behind with the first generation; where one is alone there is no other.
    if type(transport) is not TorchTransport and transport.membership.world_size > 1:
        raise ConfigError(
            "membership.elastic: ranks can be lost and go on over gloo and nccl alone, "
            f"got {type(transport).__name__}; leave it out"
        )

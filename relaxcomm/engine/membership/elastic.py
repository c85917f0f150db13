"""Ranks come and go: those who train agree on who goes on, in a world of their own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TypeVar

from relaxcomm.config import Config
from relaxcomm.errors import CommunicationError, ConfigError, RankLostError
from relaxcomm.network import TorchTransport, Transport
from relaxcomm.network.generations import Generation, Generations
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.step.world import World
from relaxcomm.system.telling import tell
from relaxcomm.tensors import buffer_pool

T = TypeVar("T")
_ATTEMPTS = 3  # to join: each costs the others a step, and it may be this worker that is hard to reach
_SHOWN = 16  # workers in an error


class Elastic:
    """Makes the world of the next generation.

    Args:
        generations: on which the workers agree.
        timeout_seconds: how long a worker waits to be admitted.
        quorum: the least number of ranks that go on.
    """

    def __init__(self, generations: Generations, timeout_seconds: float, quorum: int) -> None:
        self.generations, self._timeout_seconds, self._quorum = generations, timeout_seconds, quorum
        self._lost: dict[int, str] = {}  # in all changes that this worker has seen

    @classmethod
    def begin(cls, rendezvous: Rendezvous, settings: Config) -> Elastic:
        """In generation 0.

        Args:
            rendezvous: where its ranks have met.
            settings: of the run.
        """
        membership, limit = settings.membership, settings.timeout_seconds
        patience = membership.grace_seconds or limit
        return cls(
            Generations(rendezvous, rendezvous.membership.world_size, patience), limit, membership.quorum
        )

    @property
    def generation(self) -> Generation:
        """The one that trains now."""
        return self.generations.current

    def next_world(self, world: World, newest: int, left: Generation) -> World:
        """Agree on who goes on, and meet them.

        Args:
            world: before.
            newest: newcomers up to this one are admitted.
            left: the generation that has trained last; what was lost in one that never met counts from then.

        Raises: GivenUpError if this rank is not among them; CommunicationError if they are too few, or
            do not reach each other and this one is at fault, as far as can be said.
        """
        in_vain, why = 0, ""
        while True:
            rendezvous = self.generations.follow(newest)
            self._check_quorum()
            in_vain = 0 if self.generation.lost or self.generation.joined else in_vain
            if in_vain == 2 * _ATTEMPTS or (in_vain == _ATTEMPTS and self.generations.reaches_fewest()):
                raise CommunicationError(
                    f"this worker and another reach the store, but not each other, {in_vain} times in a "
                    f"row: {why}; see to the network between their hosts, and start this one again"
                )
            try:
                following = self.at(world, rendezvous)
                self.generations.current = self._since(left)
                return following
            except RankLostError as error:  # another is lost: those who are left agree anew
                in_vain, why = in_vain + 1, str(error)
                if in_vain == _ATTEMPTS:
                    self.generations.tell_reached()

    def _since(self, left: Generation) -> Generation:
        """The generation now, with all who were lost and have joined since another one."""
        now = self.generation
        lost = {one: self._lost[one] for one in left.workers if one not in now.workers}
        joined = tuple(one for one in now.workers if one not in left.workers)
        return replace(now, lost=lost, joined=joined)

    def at(self, world: World, rendezvous: Rendezvous) -> World:
        """This rank's world among those who meet there."""
        assert isinstance(world.transport, TorchTransport), "other networks lose no ranks"
        return replace(world, transport=world.transport.at(rendezvous))

    def join(self, meet: Callable[[Rendezvous], T]) -> T:
        """Ask to be admitted as a new worker, and meet the others; again where that is broken off.

        Args:
            meet: all that is done with them before this worker is one of them.

        Returns: what that returns.

        Raises: CommunicationError or ConfigError if it is not admitted.
        """
        for attempt in count(1):
            self.generations.ask()
            rendezvous = self.generations.wait_for_admission(self._timeout_seconds)
            try:
                return meet(rendezvous)
            except RankLostError as error:
                if attempt == _ATTEMPTS:
                    raise CommunicationError(
                        f"joining was broken off {_ATTEMPTS} times; start this worker again: {error}"
                    ) from None
                tell(f"joining was broken off, so it asks again: {error}")
                forget_locals(error)
                buffer_pool.release()  # as in `give_up`
        raise AssertionError("it has returned or raised")

    def give_up(self, world: World) -> None:
        """Let go of operations that will never end."""
        assert isinstance(world.transport, TorchTransport), "other networks lose no ranks"
        world.transport.give_up()
        buffer_pool.release()  # an operation that was given up may still write to what it was handed

    def say(self, step: int, *, in_order: bool) -> None:
        """Say who was lost and who has joined, and how many go on.

        Args:
            step: from which they go on.
            in_order: whether nothing that was under way was given up.
        """
        now = self.generation
        changes = [f"worker {worker} {how}" for worker, how in now.lost.items()]
        changes += [f"worker {worker} joins" for worker in now.joined]
        if not changes and in_order:  # who has asked has ended before it joined
            return
        if not changes:
            changes = ["a rank was late, so what was under way is given up, but none is lost"]
        size = len(now.workers)
        ranks = "1 rank goes" if size == 1 else f"{size} ranks go"
        tell(f"{'; '.join(changes)}: {ranks} on from step {step}")

    def _check_quorum(self) -> None:
        self._lost |= self.generation.lost
        size = len(self.generation.workers)
        if size < self._quorum:
            newest = list(self._lost.items())[-_SHOWN:]
            lost = "; ".join(f"worker {worker} {how}" for worker, how in newest)
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


def forget_locals(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold: operations on connections that are to be closed."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__

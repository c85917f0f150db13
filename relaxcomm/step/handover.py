"""What services hold for all ranks, when others take part from now on: put together, and shared out anew."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.network.byte_counters import RECOVERY
from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.network.transport import Service
from relaxcomm.roles.exchange import OUTER
from relaxcomm.step.bound import Bound
from relaxcomm.step.plan import TaskKey
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.shards import shards_of


class Handover:
    """Brings what services hold from some ranks to those that are left of them.

    The parts of a model on ranks that are lost are the mean of what each other rank has last read of them. Of
    what else a lost rank has kept for its part, such as momentum, the part begins anew. What a rank has moved
    and not pushed, or pushed to nobody who has taken it, it still has to push.

    Args:
        old: before; its services answer nobody any more.
        world: those that are left.
        in_step: whether this rank is in a step, in which it may have pushed.
    """

    def __init__(self, old: Bound, world: World, *, in_step: bool) -> None:
        self._old, self._world = old, world
        self._parameters: list[tuple[Bucket, Tensor]] = []
        self._moved: list[tuple[Bucket, Tensor]] = []
        self._others: dict[TaskKey, dict[str, Tensor]] = {}
        self._in_step = in_step
        self._taken_by: dict[int, dict[TaskKey, list[int]]] = {}

    def take(self) -> None:
        """Let the parameters be what services hold."""
        old = self._old
        if not old.state.services:
            return
        # How many rounds of each rank's pushes this rank's services have taken.
        taken = {
            key: [one.taken(rank) for rank in range(old.world.size)]
            for key, one in old.state.services.items()
        }
        self._taken_by = dict(self._world.gather((old.world.rank, taken), RECOVERY))
        for key, service in old.state.services.items():
            bucket = self._old.plan.bucket(key[1])
            self._parameters.append((bucket, bucket.copy()))
            self._settle(key, bucket, service)

    def give(self, new: Bound) -> None:
        """Complete what the same algorithm keeps now; it was made of the parameters."""
        new.state.follow(self._old.state)
        for key, others in self._others.items():
            service = new.state.services[key]
            cut = {
                name: shards_of(whole, new.world.size)[new.world.rank][1] for name, whole in others.items()
            }
            service.restore({**service.export(), **cut})
        for bucket, moved in self._moved:
            bucket.add(moved)
        if new.state.services:
            new.world.meet(RECOVERY)  # nobody pushes to a service that is not complete

    def undo(self) -> None:
        """Leave the parameters as they were."""
        for bucket, values in self._parameters:
            bucket.scatter(values)

    def _settle(self, key: TaskKey, bucket: Bucket, service: Service) -> None:
        rest, part = service.rest(), service.part()
        if rest is not None:
            bucket.add(rest.to(bucket.device, bucket.dtype))
        if part is None:
            return
        rule, slots = self._old.algorithm.rules[key[0]], self._old.state.slots[key]["payload"]
        base = rule.payload.base(self._old.context(key[0]), bucket, slots)
        assert base is not None, "where services hold a model, ranks move from it"
        moved = bucket.gather(bucket.empty()).sub_(base)
        if self._in_step:
            self._forget_taken(key, moved)
        whole = self._whole(key, part, base)
        self._others[key] = {
            name: self._whole(key, value, torch.zeros_like(base))
            for name, value in service.export().items()
            if name.startswith(OUTER)
        }
        bucket.scatter(whole.to(bucket.device, bucket.dtype))
        self._moved.append((bucket, moved))

    def _forget_taken(self, key: TaskKey, moved: Tensor) -> None:
        """Leave out what services have taken of the push that was under way."""
        old = self._old
        round = max(count for (rule, _), count in old.state.rounds.items() if rule == key[0])
        for owner, (_, shard) in enumerate(shards_of(moved, old.world.size)):
            if owner in self._taken_by and self._taken_by[owner][key][old.world.rank] == round:
                shard.zero_()

    def _whole(self, key: TaskKey, part: Tensor, copy: Tensor) -> Tensor:
        """All parts together; those of lost ranks are the mean of all copies.

        Args:
            part: of this rank's service.
            copy: what this rank has of the whole.
        """
        old = self._old
        mine = copy.to(part.dtype, copy=True)  # where ranks exchange: a service's part is on the host
        for owner, (_, shard) in enumerate(shards_of(mine, old.world.size)):
            if owner == old.world.rank:
                shard.copy_(part)
            elif owner in self._taken_by:
                shard.zero_()
            else:
                shard.div_(len(self._taken_by))
        return self._world.run(AllReduce(mine, "sum"), Label(0, RECOVERY, key[1]))

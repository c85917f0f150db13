"""Workers that join a run: those who train learn of them, and one hands each its own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from relaxcomm.config import Config
from relaxcomm.engine.membership.parcels import encoded, pass_on
from relaxcomm.engine.membership.survival import tasks_of, wholes
from relaxcomm.errors import RankLostError, RelaxcommError
from relaxcomm.network.byte_counters import RECOVERY
from relaxcomm.network.generations import Generations
from relaxcomm.network.operations import Agree, Label
from relaxcomm.network.transport import Pending
from relaxcomm.replica import sent_model, sent_optimizers
from relaxcomm.replica.replica import Replica
from relaxcomm.step.bound import Bound
from relaxcomm.step.world import World, tensor_of
from relaxcomm.tensors.digest import checksum

_LOOK_SECONDS = 0.5
_MOST = 64  # synchronisations between two looks: steps may become slow


class Newcomers:
    """Learns at synchronisations, on all ranks at the same one, whether workers ask to be admitted.

    Rank 0 looks into the store now and then; what it has seen travels with a number that all ranks share,
    sent at one synchronisation and read at a later one, so that nobody waits for it.
    """

    def __init__(self, generations: Generations, world: World) -> None:
        self._generations, self._world = generations, world
        self._pending: Pending | None = None
        self._left = self._period = 1  # synchronisations until the next look, and between two
        self._last = world.transport.now()

    def synchronised(self) -> int:
        """One more synchronisation is over; the last worker that is to be admitted now, or -1."""
        self._left -= 1
        if self._left:
            return -1
        found = -1
        try:
            if self._pending is not None:
                found, self._period = tensor_of(self._world.receive(self._pending)).tolist()
            self._send()
        except RankLostError:  # the next step's exchange meets the same, where all know what to do
            self._left, self._pending = _MOST, None
            return -1
        self._left = self._period
        return found

    def fit(self, newest: int, settings: Config) -> bool:
        """Whether the run can have as many workers as ask; else they are told why not."""
        try:
            settings.check_world_size(self._world.size + newest - self._generations.current.newest)
        except RelaxcommError as error:
            self._generations.refuse(newest, str(error), says=self._world.rank == 0)
            return False
        return True

    def _send(self) -> None:
        now = self._world.transport.now()
        seconds, self._last = max(1e-6, (now - self._last) / self._period), now
        # Twice as many at most: the first step of a generation says little.
        wanted = min(_MOST, 2 * self._period, max(1, round(_LOOK_SECONDS / seconds)))
        newest = self._generations.newest() if self._world.rank == 0 else -1
        numbers = torch.tensor([newest, wanted], dtype=torch.int64)
        self._pending = self._world.issue(Agree(numbers, "max"), Label(0, RECOVERY))


def hand_over(world: World, state: Mapping[str, Any], newcomers: Sequence[int]) -> None:
    """Send a state to workers that have joined; every rank calls this or `take_over`.

    Args:
        world: the ranks now.
        state: of this rank.
        newcomers: ranks that have joined; each is served by one of the others.
    """
    others = [rank for rank in range(world.size) if rank not in newcomers]
    mine = [one for index, one in enumerate(newcomers) if others[index % len(others)] == world.rank]
    pass_on(world, dict.fromkeys(mine, encoded(state)) if mine else {})


def take_over(world: World) -> Any:
    """The state that another rank hands to this one, which has joined."""
    (state,) = pass_on(world, {}).values()
    return state


def frozen(replica: Replica) -> dict[str, int]:
    """Checksums of what is not trained, by name: who joins mostly has it, and it is large beside the rest."""
    return {item.name: int(checksum(item.parameter)) for item in replica.frozen}


def exported_replica(replica: Replica, held: Sequence[Mapping[str, int]] = ({},)) -> dict[str, Any]:
    """Model, optimizers and scaler.

    Args:
        replica: of this rank.
        held: by each that joins, see `frozen`; what all of them hold is not sent.
    """
    known = {name for name, own in frozen(replica).items() if all(one.get(name) == own for one in held)}
    sent = [item for item in (*replica.parameters, *replica.frozen) if item.name not in known]
    state = sent_model.state(replica.model).items()
    return {
        "model": {name: None if name in known else value for name, value in state},
        "parameters": sent_model.values(sent),
        "optimizers": sent_optimizers.states(replica),
        "scaler": None if replica.scaler is None else replica.scaler.state_dict(),
    }


def restore_replica(replica: Replica, saved: Mapping[str, Any]) -> None:
    """Take over model, optimizers and scaler.

    Raises: ConfigError where the model or the optimizers are others.
    """
    sent_model.load(replica.model, saved["model"])
    sent_model.fill([*replica.parameters, *replica.frozen], saved["parameters"])
    sent_optimizers.load(replica, saved["optimizers"])
    if replica.scaler is not None and saved["scaler"]:  # the run may have none, or one that is off
        replica.scaler.load_state_dict(saved["scaler"])


def restore_slots(bound: Bound, slots: Mapping[tuple[int, int], Mapping[str, Any]]) -> None:
    """Take over what all ranks have in common; a residual is another rank's, and this one has none yet."""
    for task in tasks_of(bound):
        for role, kept, known in wholes(bound, task):
            names = [name for name, how in known.items() if how in ("equal", "mean")]
            kept.restore({name: slots[task.key][role][name] for name in names})

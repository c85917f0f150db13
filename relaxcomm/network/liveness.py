"""What becomes of the ranks, told through the store of the default process group."""

from __future__ import annotations

import re

import torch.distributed as dist

from relaxcomm.network.transport import Membership

_FRAMES = re.compile(r"(^|\n)(Exception raised from|frame #)[^\n]*")


def without_frames(error: object) -> str:
    """What an error says, without the C++ stack that torch puts behind it."""
    return _FRAMES.sub("", str(error)).strip()


class Peers:
    """Statuses that ranks publish for those that wait for them.

    Args:
        name: of the group of ranks, the same on all of them and used once.
        membership: this rank and how many there are.
    """

    def __init__(self, name: str, membership: Membership) -> None:
        # The store of the default group has no public accessor.
        self._store = dist.distributed_c10d.PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._others = [rank for rank in range(membership.world_size) if rank != membership.rank]
        self._key = f"status/{membership.rank}"

    def announce(self, status: str) -> bool:
        """Publish a status; False if the store's host is gone, and with it whoever would read this."""
        try:
            self._store.set(self._key, status)
        except RuntimeError:
            return False
        return True

    def gone(self, *how: str) -> str:
        """Whose status begins so, "failed" or "closed" unless told otherwise; or nothing."""
        try:
            statuses = self._statuses()
        except RuntimeError as error:
            cause = without_frames(error)
            return f"the store does not answer, so the process that holds it has ended ({cause})"
        return "; ".join(
            f"rank {r} {s}" for r, s in statuses.items() if s.startswith(how or ("failed", "closed"))
        )

    def heard(self) -> str:
        """What is known of all the others."""
        try:
            known = self._statuses()
        except RuntimeError as error:
            return f"the store does not answer ({without_frames(error)})"
        return "; ".join(
            f"rank {rank} {known[rank]}" if rank in known else f"nothing heard of rank {rank}"
            for rank in self._others
        )

    def _statuses(self) -> dict[int, str]:
        found = {}
        for rank in self._others:
            key = f"status/{rank}"
            if self._store.check([key]):
                found[rank] = self._store.get(key).decode()
        return found

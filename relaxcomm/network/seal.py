"""What ranks sign for each other, once each knows that the others have the same secret."""

from __future__ import annotations

import hashlib
import json
import pickle
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from relaxcomm.errors import CommunicationError, ConfigError, ForgeryError, RankLostError, some_of
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.secret import TAG_BYTES, Secret
from relaxcomm.network.signed_store import UNSIGNED, absent, read_all

_NONE, _OBJECTS = "none", "objects"
_TOGETHER = "every rank must call attach(), and not much later than the others"


@dataclass(frozen=True)
class Seal:
    """Signs for one session, which no other run or generation has; without a secret it signs nothing.

    Args:
        secret: that all ranks share, or None.
        session: a digest of what each rank has drawn for it, so that nothing old fits it.
    """

    secret: Secret | None
    session: bytes

    def tag(self, purpose: str, *parts: Any) -> bytes:
        """A tag of these in this session; empty without a secret."""
        return b"" if self.secret is None else self.secret.tag(purpose, self.session, *parts)

    def check(self, tag: bytes, purpose: str, *parts: Any) -> bool:
        """Whether a tag is that of these in this session."""
        return self.secret is None or self.secret.holds(tag, purpose, self.session, *parts)

    def pack(self, value: object, at: str, rank: int) -> bytes:
        """A rank's object, with a tag for an event alone; `at` names it, and is never used again."""
        content = pickle.dumps(value)
        return self.tag(_OBJECTS, f"{at} {rank}".encode(), content) + content

    def unpack(self, came: Sequence[bytes], at: str, event: str) -> list[object]:
        """The objects of all ranks, in rank order, as `pack` has made them.

        Raises: ForgeryError if one was not made with the secret, for this event.
        """
        size = 0 if self.secret is None else TAG_BYTES
        for rank, one in enumerate(came):  # before it is read: what is pickled can run code
            if not self.check(one[:size], _OBJECTS, f"{at} {rank}".encode(), one[size:]):
                raise ForgeryError(
                    f"what came from rank {rank} at {event} was not made with membership.secret"
                )
        return [pickle.loads(one[size:]) for one in came]


def agree(rendezvous: Rendezvous) -> Seal:
    """Meet the other ranks, and see that they have the same secret.

    Rank 0 reads what each has drawn and tells each what came of it: if all read all, a thousand ranks would
    ask the store a million times.

    Raises: RankLostError if one does not come; ConfigError, on every rank, if some have no secret;
        ForgeryError if some have another.
    """
    name, secret, limit = rendezvous.name, rendezvous.secret, rendezvous.making
    rank, size = rendezvous.membership.rank, rendezvous.membership.world_size
    drawn = secrets.token_hex(16)
    open_store = PrefixStore(f"{name}/{UNSIGNED}", rendezvous.store)
    open_store.set(str(rank), f"{drawn} {_proof(secret, name, rank, drawn)}")
    if rank == 0:
        _tell_all(open_store, name, size, secret, limit)
    _wait(open_store, [_found(rank)], size, limit)
    found = json.loads(open_store.get(_found(rank)))
    without, others, session = found["without"], found["others"], found["session"]
    if without:
        raise ConfigError(
            f"ranks {without} have no membership.secret and the others have one; give all the same, or none"
        )
    has_other = found["proof"] != _proof(secret, name, rank, drawn, session, others)  # than rank 0
    if has_other or others:
        differ = [other for other in range(size) if other not in {*others, rank}] if has_other else others
        raise ForgeryError(
            f"rank {rank} and ranks {differ} have different membership.secrets; give all the same"
        )
    return Seal(secret, bytes.fromhex(session))


def _tell_all(store: Any, name: str, size: int, secret: Secret | None, limit: timedelta) -> None:
    """What rank 0 finds, with a proof for each that it has the secret, and has seen what that rank drew."""
    keys = [str(rank) for rank in range(size)]
    _wait(store, keys, size, limit)
    told = [value.decode().split() for value in read_all(store, keys)]
    without = [rank for rank in range(size) if told[rank][1] == _NONE]
    found = {
        "without": without if len(without) < size else [],
        "others": [r for r in range(size) if told[r][1] != _proof(secret, name, r, told[r][0])],
        "session": hashlib.blake2b(repr((name, told)).encode(), digest_size=8).hexdigest(),
    }
    for rank, (drawn, _) in enumerate(told):
        proof = _proof(secret, name, rank, drawn, found["session"], found["others"])
        store.set(_found(rank), json.dumps({**found, "proof": proof}))


def _wait(store: Any, keys: Sequence[str], size: int, limit: timedelta) -> None:
    """Wait for what others write.

    Raises: RankLostError that names who has not come: the first to give up may be the only one heard;
        CommunicationError if all have.
    """
    try:
        store.wait(keys, limit)
    except RuntimeError as error:
        missing = [*map(str, absent(store, range(size)))]
        if not missing:
            raise CommunicationError(f"rank 0 had given up before the last one came; {_TOGETHER}") from error
        late = f"rank{'s' * (len(missing) > 1)} {some_of(missing)} did not come"
        raise RankLostError(f"{late}; {_TOGETHER}") from error


def _found(rank: int) -> str:
    return f"found/{rank}"


def _proof(secret: Secret | None, name: str, rank: int, *parts: Any) -> str:
    """A digest that proves that a rank knows the secret, without telling it."""
    if secret is None:
        return _NONE
    return secret.tag("seal", *(str(part).encode() for part in (name, rank, *parts))).hex()

"""A store whose values count only if somebody with the shared secret has written them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from relaxcomm.errors import ForgeryError
from relaxcomm.network.secret import TAG_BYTES, Secret

UNSIGNED = "unsigned/"
"""In keys under which those who have the secret, and those who have none, find out about each other."""

_PURPOSE = "store"


class SignedStore(Store):
    """Signs what is written, with its key, and checks what is read; for torch's own use, too.

    A value that stands under another key, or was written by somebody else, is an error. It does not hide
    values, and does not know an older value of the same key from a newer one. Hold on to it: a `PrefixStore`
    of torch's keeps only what is C++'s of it.

    Args:
        store: of torch.distributed.
        secret: that all who use it share.
    """

    def __init__(self, store: Any, secret: Secret) -> None:
        super().__init__()
        self._store = store
        self._secret = secret
        self._clones: list[SignedStore] = []  # torch holds them, but not what is Python's of them

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, self._signed(key, value))

    def get(self, key: str) -> bytes:
        return self._checked(key, self._store.get(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [
            self._checked(key, value) for key, value in zip(keys, self._store.multi_get(keys), strict=True)
        ]

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        before = self._signed(key, expected) if expected else b""
        return self._checked(key, self._store.compare_set(key, before, self._signed(key, desired)))

    def add(self, key: str, amount: int) -> int:
        while True:
            before = self.get(key) if self.check([key]) else b""
            total = int((before or b"0").split()[0]) + amount
            mine = f"{total} {secrets.token_hex(8)}".encode()  # told apart from another's equal total
            if self.compare_set(key, before, mine) == mine:
                return total

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        if timeout is None:
            self._store.wait(keys)
        else:
            self._store.wait(keys, timeout)

    def delete_key(self, key: str) -> bool:
        return bool(self._store.delete_key(key))

    def num_keys(self) -> int:
        return int(self._store.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout  # type: ignore[no-any-return]  # a store of any kind

    @property
    def underlying_store(self) -> Any:
        """The one that it signs for."""
        return self._store

    def clone(self) -> SignedStore:
        made = SignedStore(self._store.clone(), self._secret)
        self._clones.append(made)
        return made

    def _signed(self, key: str, value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else bytes(value)
        if UNSIGNED in key:
            return data
        return data + self._secret.tag(_PURPOSE, key.encode(), data)

    def _checked(self, key: str, value: bytes) -> bytes:
        if UNSIGNED in key:
            return value
        data, tag = value[:-TAG_BYTES], value[-TAG_BYTES:]
        if not self._secret.holds(tag, _PURPOSE, key.encode(), data):
            raise ForgeryError(
                f"what stands in the store under {key!r} was not written with membership.secret; who else "
                "reaches the store's port?"
            )
        return data


def read_all(store: Any, keys: Sequence[str]) -> list[bytes]:
    """What stands under keys that are all there, in one round trip where the store can do that."""
    inner = getattr(store, "_underlying_non_prefix_store", store)
    kept = inner.underlying_store if isinstance(inner, SignedStore) else inner
    if kept.has_extended_api():
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]


def absent(store: Any, names: Sequence[int], prefix: str = "") -> Iterator[int]:
    """Of some numbers, in order, those of which nothing stands under `prefix`.

    They are found by halves: of a thousand most are there, and one is found in twenty questions.
    """
    if not names or store.check([f"{prefix}{name}" for name in names]):
        return
    if len(names) == 1:
        yield names[0]
        return
    half = len(names) // 2
    yield from absent(store, names[:half], prefix)
    yield from absent(store, names[half:], prefix)


def signed(store: Any, secret: Secret | None) -> Any:
    """A store that signs, unless there is no secret, or it does so already."""
    inner = getattr(store, "_underlying_non_prefix_store", store)
    return store if secret is None or isinstance(inner, SignedStore) else SignedStore(store, secret)

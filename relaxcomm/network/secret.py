"""What those who may join share, and what it signs."""

from __future__ import annotations

import hmac
from typing import Any

TAG_BYTES = 32
LEAST_BYTES = 16


class Secret:
    """A key for HMAC-SHA256, which shows itself nowhere.

    Args:
        key: of at least `LEAST_BYTES` bytes.
    """

    def __init__(self, key: bytes) -> None:
        assert len(key) >= LEAST_BYTES, "shorter ones are refused where they are read"
        self._key = key

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not written anywhere; each process reads it itself")

    def tag(self, purpose: str, *parts: Any) -> bytes:
        """What only those with the secret can make of these.

        Args:
            purpose: what is signed, so that it cannot stand for something else.
            parts: bytes, or memory, one behind the other.
        """
        made = hmac.new(self._key, digestmod="sha256")
        for part in (purpose.encode(), *parts):
            made.update(len(part).to_bytes(8, "big"))
            made.update(part)
        return made.digest()

    def holds(self, tag: bytes, purpose: str, *parts: Any) -> bool:
        """Whether a tag is that of these."""
        return hmac.compare_digest(tag, self.tag(purpose, *parts))

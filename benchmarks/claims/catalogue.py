"""All claims that are tried."""

from __future__ import annotations

from benchmarks.claims import compressed, local, selsync

CLAIMS = (*selsync.CLAIMS, *local.CLAIMS, *compressed.CLAIMS)

"""Digests that both sides of the wire compute."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from .constants import DIGEST_BYTES


def shard_digest(chunk_digests: Iterable[str]) -> str:
    """BLAKE2b-256 (hex) of a shard: its chunks' digests (hex), one after the other, in canonical order."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for digest in chunk_digests:
        state.update(bytes.fromhex(digest))
    return state.hexdigest()

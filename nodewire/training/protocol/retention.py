"""For how many rounds a customer's coordinator keeps what audits need. What it has forgotten is recalled."""

from __future__ import annotations

KEPT_BYTES = 64 * 2**20
MAX_KEPT_ROUNDS = 64


def kept_rounds(state_bytes: int, shards: int) -> int:
    """For how many rounds a coordinator keeps what audits need: theta, and of each shard the update, packed and not."""
    return min(MAX_KEPT_ROUNDS, max(2, KEPT_BYTES // (state_bytes * (2 * shards + 1))))

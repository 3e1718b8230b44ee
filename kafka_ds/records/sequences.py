"""Pure: sequences of an idempotent producer's records in a partition (KIP-98)."""

from __future__ import annotations


def sequence_after(sequence: int, count: int) -> int:
    """The sequence ``count`` records later (earlier if negative); after 2^31 - 1 comes 0."""
    return (sequence + count) & 0x7FFF_FFFF

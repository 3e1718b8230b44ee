"""Pure: which partition of `__consumer_offsets` keeps a group.

Rules of this file: the hash is Java's of a string, over its UTF-16 units, because a data directory of Apache Kafka must
find its groups here again; so the number of partitions never changes once the topic exists.
"""

from __future__ import annotations

TOPIC = "__consumer_offsets"

_SIGN = 1 << 31
_WORD = (1 << 32) - 1


def java_hash(text: str) -> int:
    """Java's `String.hashCode`."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _WORD
    return value - (_WORD + 1) if value & _SIGN else value


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of a group, of so many."""
    value = java_hash(group_id)
    # Kafka's Utils.abs: the one number whose magnitude does not fit becomes 0.
    return (0 if value == -_SIGN else abs(value)) % partitions

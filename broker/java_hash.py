"""Pure: Java's hash of a text, by which Kafka places groups, transactions and fetchers.

It goes over UTF-16 units, as Java's strings do: a data directory of Apache Kafka must find its groups here again.
"""

from __future__ import annotations

SIGN = 1 << 31
_WORD = (1 << 32) - 1


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, a signed number of 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _WORD
    return value - (_WORD + 1) if value & SIGN else value

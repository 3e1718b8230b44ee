"""Pure: Java's hash of a text, by which Kafka places groups, transactions and fetchers.

It goes over UTF-16 units, as Java's strings do: a data directory of Apache Kafka must find its groups here again.
"""

from __future__ import annotations

import sys

SIGN = 1 << 31
_WORD = (1 << 32) - 1
_UTF_16 = f"utf-16-{sys.byteorder[:1]}e"


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, a signed number of 32 bits."""
    value = 0
    for unit in memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H"):
        value = (31 * value + unit) & _WORD
    return value - (_WORD + 1) if value & SIGN else value

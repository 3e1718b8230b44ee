"""Pure: assigns rows to partitions as the Java client does; loops that numba compiles.

- A row's own partition wins. Otherwise its key decides, by murmur2 with Java's seed, as in Kafka's other clients.
  Without a key the partition is sticky: it changes when it has a batch's bytes (KIP-480, KIP-794).
- Java's integers have 32 bits. These have 64, so they are masked after each step that can overflow 32 bits.
- `order` sorts rows by partition, and is stable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from kafka_ds.records.encoder import BinaryColumn

__all__ = ["NO_PARTITION", "STICKY", "STICKY_BYTES", "STICKY_FIELDS", "assign", "murmur2", "order"]

U = np.uint64
called = register_jitable(_nrt=False)
Int = Any  # an int in Python, 64 signed bits once compiled

NO_PARTITION = -1
# The state between calls: the sticky partition, and the bytes that were assigned to it.
STICKY, STICKY_BYTES = range(2)
STICKY_FIELDS = 2
# About what a record needs apart from key and value: a batch's size is only a target.
ROW_OVERHEAD_BYTES = 16

_MASK = 0xFFFF_FFFF
_SEED = 0x9747_B28C
_M = 0x5BD1_E995


@called
def murmur2(data: NDArray[np.uint8], start: Int, length: Int) -> Int:
    """Kafka's `Utils.murmur2` of `data[start:start + length]`, as an unsigned number of 32 bits."""
    m, mask = U(_M), U(_MASK)
    h = U(_SEED) ^ U(length)
    at = U(start)
    for _ in range(length // 4):
        k = U(data[at]) | U(data[at + U(1)]) << U(8)
        k |= U(data[at + U(2)]) << U(16) | U(data[at + U(3)]) << U(24)
        k = k * m & mask
        k ^= k >> U(24)
        k = k * m & mask
        h = h * m & mask ^ k
        at += U(4)
    rest = length % 4
    if rest > 0:
        for i in range(rest):
            h ^= U(data[at + U(i)]) << U(8 * i)
        h = h * m & mask
    h ^= h >> U(13)
    h = h * m & mask
    h ^= h >> U(15)
    return np.int64(h)


@called
def _length(column: BinaryColumn, row: Int) -> Int:
    """The length of a value; -1 for null."""
    r = U(row)
    if len(column.offsets) == 0 or (len(column.valid) > 0 and column.valid[r] == 0):
        return np.int64(-1)
    return np.int64(column.offsets[r + U(1)]) - np.int64(column.offsets[r])


def assign(
    wanted: NDArray[np.int32],
    key: BinaryColumn,
    value: BinaryColumn,
    keys_decide: bool,
    bytes_max: Int,
    partition_count: Int,
    sticky: NDArray[np.int64],
    out: NDArray[np.int32],
) -> None:
    """Fill `out` with each row's partition; `wanted` is the row's own, or `NO_PARTITION`."""
    for row in range(len(wanted)):
        r = U(row)
        if wanted[r] != NO_PARTITION:
            out[r] = wanted[r]
            continue
        key_bytes = _length(key, row)
        if keys_decide and key_bytes >= 0:
            hashed = murmur2(key.data, np.int64(key.offsets[r]), key_bytes)
            out[r] = np.int32((hashed & 0x7FFF_FFFF) % partition_count)
            continue
        if sticky[STICKY_BYTES] >= bytes_max:
            sticky[STICKY] = (sticky[STICKY] + 1) % partition_count
            sticky[STICKY_BYTES] = 0
        sticky[STICKY_BYTES] += max(key_bytes, 0) + max(_length(value, row), 0) + ROW_OVERHEAD_BYTES
        out[r] = np.int32(sticky[STICKY])


def order(partitions: NDArray[np.int32], ends: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """Fill `rows` with the rows by partition, and `ends` (initially zeros) with the end of each partition's rows."""
    for row in range(len(partitions)):
        ends[U(partitions[U(row)])] += 1
    start = np.int64(0)
    for partition in range(len(ends)):
        count = ends[U(partition)]
        ends[U(partition)] = start
        start += count
    for row in range(len(partitions)):
        of_row = U(partitions[U(row)])
        rows[U(ends[of_row])] = row
        ends[of_row] += 1

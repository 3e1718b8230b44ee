"""Pure: the loops that turn bytes of Parquet's pages into numbers and offsets; compiled by `pages.py`.

No byte is read outside of the bytes given, and none written outside of the output; what breaks a rule of the encoding
(Parquet's Encodings.md) gives MALFORMED, and nothing raises. DELTA_BINARY_PACKED sums wrap. RLE is of levels of one
bit. Positions are computed signed and used unsigned, as in `kafka_ds.records.decoder`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_ds.records.encoder import Int, U, inlined

__all__ = ["MALFORMED", "byte_offsets", "deltas", "levels"]

MALFORMED = -1
# A miniblock holds a multiple of 32 values, so that it ends at a byte.
MINIBLOCK_VALUES = 32
BLOCK_VALUES_MAX = 1 << 20
VALUES_MAX = 1 << 40
VARINT_BYTES_MAX = 10


@inlined
def _varint(data: NDArray[np.uint8], at: Int, end: Int) -> tuple[Int, Int]:
    """An unsigned number of up to 64 bits, and the position after it; MALFORMED where it does not end."""
    value = U(0)
    for index in range(VARINT_BYTES_MAX):
        if at + index >= end:
            break
        byte = U(data[U(at + index)])
        value |= (byte & U(0x7F)) << U(7 * index)
        if byte < U(0x80):
            return value, at + index + 1
    return U(0), np.int64(MALFORMED)


@inlined
def _signed(zigzag: Int) -> Int:
    return np.int64(zigzag >> U(1)) ^ -np.int64(zigzag & U(1))


@inlined
def _bits(data: NDArray[np.uint8], start: Int, first_bit: Int, width: Int) -> Int:
    """The number of 1 to 64 bits that begins at that bit."""
    at = U(start + (first_bit >> 3))
    skipped = first_bit & 7
    value = U(data[at]) >> U(skipped)
    got = 8 - skipped
    while got < width:
        at += U(1)
        value |= U(data[at]) << U(got)
        got += 8
    return value & (~U(0) >> U(64 - width))


@inlined
def _delta_header(data: NDArray[np.uint8], start: Int, end: Int) -> tuple[Int, Int, Int, Int, Int]:
    """Values of a miniblock, miniblocks of a block, count, the first value, and the position after them."""
    block, at = _varint(data, start, end)
    miniblocks, at = _varint(data, at, end) if at >= 0 else (block, at)
    count, at = _varint(data, at, end) if at >= 0 else (block, at)
    first, at = _varint(data, at, end) if at >= 0 else (block, at)
    if at < 0 or miniblocks == U(0) or miniblocks > block or block > U(BLOCK_VALUES_MAX):
        return 0, 0, 0, 0, np.int64(MALFORMED)
    values = block // miniblocks
    if block % miniblocks != U(0) or values % U(MINIBLOCK_VALUES) != U(0) or count > U(VALUES_MAX):
        return 0, 0, 0, 0, np.int64(MALFORMED)
    return np.int64(values), np.int64(miniblocks), np.int64(count), _signed(first), at


def deltas(data: NDArray[np.uint8], start: Int, end: Int, out: NDArray[np.int64]) -> Int:
    """Fill `out` with as many DELTA_BINARY_PACKED numbers as fit; returns the position after them."""
    values, miniblocks, count, last, at = _delta_header(data, start, end)
    if at < 0 or count != len(out):
        return np.int64(MALFORMED)
    if count > 0:
        out[0] = last
    row = 1
    while row < count:
        least, widths = _varint(data, at, end)
        at = widths + miniblocks
        if widths < 0 or at > end:
            return np.int64(MALFORMED)
        step = _signed(least)
        for miniblock in range(miniblocks):
            if row >= count:
                break  # Those that hold nothing have no bytes, whatever their width.
            width = np.int64(data[U(widths + miniblock)])
            size = (values >> 3) * width
            if width > 64 or size > end - at:
                return np.int64(MALFORMED)
            for index in range(min(values, count - row)):
                last += step
                if width > 0:
                    last += np.int64(_bits(data, at, index * width, width))
                out[U(row + index)] = last
            row += values
            at += size
    return at


def levels(data: NDArray[np.uint8], start: Int, end: Int, out: NDArray[np.uint8]) -> Int:
    """Fill `out` with levels of one bit, and give how many are 0."""
    at = start
    row: Int = 0
    zeros: Int = 0
    count: Int = 0
    while row < len(out):
        header, at = _varint(data, at, end)
        if at < 0 or header < U(2) or at >= end:
            return np.int64(MALFORMED)
        length = header >> U(1)
        if header & U(1) != U(0):
            if length > U(end - at):
                return np.int64(MALFORMED)
            count = min(np.int64(length) * 8, len(out) - row)
            for index in range(count):
                level = data[U(at + (index >> 3))] >> np.uint8(index & 7) & np.uint8(1)
                out[U(row + index)] = level
                zeros += 1 - np.int64(level)
            at += np.int64(length)
        else:
            level = data[U(at)]
            if level > 1:
                return np.int64(MALFORMED)
            count = np.int64(min(length, U(len(out) - row)))
            for index in range(count):
                out[U(row + index)] = level
            zeros += count * (1 - np.int64(level))
            at += 1
        row += count
    return np.int64(zeros)


def byte_offsets(
    lengths: NDArray[np.int64],
    valid: NDArray[np.uint8],
    room: Int,
    first: Int,
    out: NDArray[np.int32],
) -> Int:
    """Fill `out` with where each row's bytes end, from `first` on; their sum.

    `valid` has a byte for each row, 0 where it has no length, or none at all; they take `room` bytes at most.
    """
    total = np.int64(0)
    value = 0
    for row in range(len(out)):
        if len(valid) == 0 or valid[U(row)] != 0:
            length = lengths[U(value)]
            value += 1
            if length < 0 or length > room - total:
                return np.int64(MALFORMED)
            total += length
        out[U(row)] = np.int32(first + total)
    return total

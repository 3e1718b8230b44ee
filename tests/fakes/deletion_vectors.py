"""Deletion vectors as other engines write them."""

import struct
import zlib
from base64 import b85encode
from collections.abc import Iterable, Sequence
from typing import Any

from kafka_ds.delta.deletion_vector import B85, PORTABLE, Z85

_FROM_B85 = bytes.maketrans(B85, Z85)


def bitmap(positions: Iterable[int], *, runs: bool = False) -> bytes:
    """The portable format of 64 bits, behind its magic number."""
    halves: dict[int, dict[int, list[int]]] = {}
    for each in sorted(positions):
        low = each & 0xFFFFFFFF
        halves.setdefault(each >> 32, {}).setdefault(low >> 16, []).append(low & 0xFFFF)
    parts = [struct.pack("<IQ", PORTABLE, len(halves))]
    for high, containers in halves.items():
        parts += [struct.pack("<I", high), _bitmap32(containers, runs=runs)]
    return b"".join(parts)


def _bitmap32(containers: dict[int, list[int]], *, runs: bool) -> bytes:
    count = len(containers)
    if runs:
        flags = (1 << count) - 1
        head = struct.pack("<I", 12347 | (count - 1) << 16) + flags.to_bytes(
            -(-count // 8), "little"
        )
    else:
        head = struct.pack("<II", 12346, count)
    keys = b"".join(struct.pack("<HH", key, len(each) - 1) for key, each in containers.items())
    bodies = [_runs(each) if runs else _values(each) for each in containers.values()]
    offsets = b""
    if not runs or count >= 4:
        at = len(head) + len(keys) + 4 * count
        for body in bodies:
            offsets += struct.pack("<I", at)
            at += len(body)
    return b"".join([head, keys, offsets, *bodies])


def _values(values: Sequence[int]) -> bytes:
    if len(values) <= 4096:
        return struct.pack(f"<{len(values)}H", *values)
    return sum(1 << each for each in values).to_bytes(8192, "little")


def _runs(values: Sequence[int]) -> bytes:
    found: list[list[int]] = []
    for each in values:
        if found and each == sum(found[-1]) + 1:
            found[-1][1] += 1
        else:
            found.append([each, 0])
    return struct.pack("<H", len(found)) + b"".join(struct.pack("<HH", *run) for run in found)


def inline(positions: Sequence[int], *, runs: bool = False) -> dict[str, Any]:
    """The descriptor of a vector in the log itself."""
    body = bitmap(positions, runs=runs)
    padded = body + bytes(-len(body) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": b85encode(padded).translate(_FROM_B85).decode(),
        "sizeInBytes": len(body),
        "cardinality": len(positions),
    }


def stored(bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """A file of several vectors, and where each begins."""
    data, starts = b"\x01", []
    for body in bodies:
        starts.append(len(data))
        data += struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    return data, starts

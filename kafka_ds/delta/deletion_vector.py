"""Pure: deletion vectors of the Delta protocol: which rows of a file are deleted without the file being rewritten.

A vector is in the log itself or in a file that several share. A row is known by its place in the file. Bitmaps are of
the portable 64-bit Roaring format, the only one that engines write (the other is refused).
"""

from __future__ import annotations

import struct
import zlib
from base64 import b85decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from kafka_ds.delta.names import resolve_path

PORTABLE = 1681511377
# In a file: the length before a bitmap, and the checksum behind it.
LENGTH_BYTES = CHECKSUM_BYTES = 4
_UUID_CHARACTERS = 20
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
# Fewer containers with runs among them have no table of where each begins.
_OFFSETS_MIN = 4
Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = bytes.maketrans(Z85, B85)

Positions = NDArray[np.int64]


class BadVector(ValueError):
    """A deletion vector does not hold what the protocol says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """Where a vector is, and as the log spells it."""

    storage: str
    """i: in the log itself; u, p: in a file."""
    spelled: str
    path: str
    """The file, relative to the lake or absolute; empty where there is none."""
    offset: int | None
    size: int
    cardinality: int

    @property
    def id(self) -> str:
        """What distinguishes it from the other vectors of its file, as the protocol has it."""
        name = f"{self.storage}{self.spelled}"
        return name if self.offset is None else f"{name}@{self.offset}"

    def action(self) -> dict[str, Any]:
        """As add and remove actions have it."""
        found: dict[str, Any] = {
            "storageType": self.storage,
            "pathOrInlineDv": self.spelled,
            "sizeInBytes": self.size,
            "cardinality": self.cardinality,
        }
        return found if self.offset is None else {**found, "offset": self.offset}


def vector_of(table: str, action: Mapping[str, Any] | None) -> DeletionVector | None:
    """The vector of an add or remove action, if it has one; what is wrong with it is said by who reads it."""
    if not action:
        return None
    storage, spelled = str(action.get("storageType")), str(action.get("pathOrInlineDv"))
    path = ""
    if storage == "u":
        with suppress(ValueError):
            prefix, name = spelled[:-_UUID_CHARACTERS], spelled[-_UUID_CHARACTERS:]
            file = f"deletion_vector_{UUID(bytes=_decoded(name))}.bin"
            path = resolve_path(table, f"{prefix}/{file}" if prefix else file)
    elif storage == "p":
        path = resolve_path(table, spelled)
    offset = action.get("offset")
    return DeletionVector(
        storage=storage,
        spelled=spelled,
        path=path,
        offset=None if offset is None else int(offset),
        size=int(action.get("sizeInBytes") or 0),
        cardinality=int(action.get("cardinality") or 0),
    )


def action_of(vector: DeletionVector | None) -> dict[str, Any] | None:
    """As add and remove actions have it; None where there is none."""
    return None if vector is None else vector.action()


def stored_span(vector: DeletionVector) -> tuple[int, int]:
    """Where its bytes begin in its file, with length and checksum, and how many they are."""
    return vector.offset or 0, LENGTH_BYTES + vector.size + CHECKSUM_BYTES


def positions_of(vector: DeletionVector, stored: bytes) -> Positions:
    """The places of the deleted rows, rising; `stored` is what its file holds of it. Raises BadVector."""
    try:
        body = _decoded(vector.spelled) if vector.storage == "i" else _unwrapped(vector, stored)
        found = _bitmap(body[: vector.size])
    except (ValueError, struct.error) as error:
        raise BadVector(f"deletion vector {vector.id}: {error}") from error
    if len(found) != vector.cardinality:
        raise BadVector(f"deletion vector {vector.id}: {len(found)} rows, not {vector.cardinality}")
    return found


def _decoded(text: str) -> bytes:
    return b85decode(text.encode().translate(_TO_B85))


def _unwrapped(vector: DeletionVector, stored: bytes) -> bytes:
    (length,) = struct.unpack_from(">i", stored)
    body = stored[LENGTH_BYTES : LENGTH_BYTES + vector.size]
    (checksum,) = struct.unpack_from(">I", stored, LENGTH_BYTES + vector.size)
    if length != vector.size or checksum != zlib.crc32(body):
        raise ValueError("length or checksum are wrong")
    return body


def _bitmap(data: bytes) -> Positions:
    magic, count = struct.unpack_from("<IQ", data)
    if magic != PORTABLE:
        raise ValueError(f"format {magic} is not known")
    at, parts = 12, [np.zeros(0, np.int64)]
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        low, at = _bitmap32(data, at + 4)
        parts.append(low + (high << 32))
    return np.concatenate(parts)


def _bitmap32(data: bytes, at: int) -> tuple[Positions, int]:
    """The members of a bitmap of 32 bits, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    is_run = np.zeros(0, np.uint8)
    if has_runs:
        count = (cookie >> 16) + 1
        size = -(-count // 8)
        is_run = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
        at += size
    elif cookie == _COOKIE:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise ValueError(f"bitmap of format {cookie}")
    heads = np.frombuffer(data, "<u2", 2 * count, at).astype(np.int64).reshape(-1, 2)
    at += 4 * count
    if not has_runs or count >= _OFFSETS_MIN:
        at += 4 * count
    parts = [np.zeros(0, np.int64)]
    for number, (key, less_one) in enumerate(heads.tolist()):
        values, at = _container(data, at, less_one + 1, has_runs and bool(is_run[number]))
        parts.append(values + (key << 16))
    return np.concatenate(parts), at


def _container(data: bytes, at: int, cardinality: int, is_run: bool) -> tuple[Positions, int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, at)
        runs = np.frombuffer(data, "<u2", 2 * count, at + 2).astype(np.int64).reshape(-1, 2)
        values = [np.arange(start, start + more + 1) for start, more in runs.tolist()]
        return np.concatenate([np.zeros(0, np.int64), *values]), at + 2 + 4 * count
    if cardinality <= _ARRAY_MAX:
        return np.frombuffer(data, "<u2", cardinality, at).astype(np.int64), at + 2 * cardinality
    bits = np.frombuffer(data, np.uint8, _BITMAP_BYTES, at)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")), at + _BITMAP_BYTES


def kept(positions: Positions, first: int, count: int) -> NDArray[np.bool_]:
    """Of `count` rows from place `first` on those that are not deleted."""
    mask = np.ones(count, np.bool_)
    low, high = positions.searchsorted([first, first + count])
    mask[positions[low:high] - first] = False
    return mask

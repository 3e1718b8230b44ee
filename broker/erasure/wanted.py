"""Pure: which records are to be erased: those with a key or by a condition, and those at places that are known.

A place is a partition and an offset of a row of the topic's table, and no other record ever has it. What a log alone
has may be truncated, and its offset used again: that teaches no place. Typed tables may spell the key in another way,
or not at all; there alone records are found by their places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA

_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
)

Runs = list[tuple[int, int]]
Holds = Callable[[NDArray[Any], pa.RecordBatch], NDArray[Any]]


def runs_of(offsets: Iterable[int]) -> Runs:
    """The offsets as runs, both ends included."""
    found: Runs = []
    for each in sorted(set(offsets)):
        if found and found[-1][1] == each - 1:
            found[-1] = (found[-1][0], each)
        else:
            found.append((each, each))
    return found


class WantedRecords:
    """The records of one topic that are to be erased."""

    def __init__(
        self,
        key: bytes | None,
        places: Mapping[int, Runs] | None = None,
        holds: Holds | None = None,
    ) -> None:
        """`holds`: of which rows of a topic a condition holds."""
        self.key = key
        self._holds = holds
        self._keys = pa.array([key], pa.large_binary())
        self.places: dict[int, Runs] = dict(places or {})
        """Of each partition the offsets that are known, as runs."""

    def learn(self, partition: int, offsets: Iterable[int]) -> bool:
        """Remember places; whether any is new."""
        new = [each for each in offsets if not self.has(partition, each)]
        if new:
            known = self.places.get(partition, [])
            all_of_them = (each for low, high in known for each in range(low, high + 1))
            self.places[partition] = runs_of([*all_of_them, *new])
        return bool(new)

    def has(self, partition: int, offset: int) -> bool:
        """Whether a place is known."""
        runs = self.places.get(partition, [])
        at = bisect_right(runs, (offset, 2**63)) - 1
        return at >= 0 and runs[at][1] >= offset

    @property
    def columns(self) -> frozenset[str]:
        """What of a record has to be known."""
        return frozenset({"offset", "key"} if self._holds is None else TOPIC_FILE_SCHEMA.names)

    def among(
        self,
        partitions: Sequence[int] | int,
        offsets: pa.Array,
        keys: pa.Array | None,
        rows: pa.RecordBatch | None = None,
        *,
        by_place: bool = False,
    ) -> NDArray[np.bool_]:
        """Which rows are to be erased; `partitions` is one number where all rows are of one partition.

        `rows` are those of a topic, for a condition; those of a typed table are looked for `by_place`, too.
        """
        numbers = _numbers(offsets)
        found = np.zeros(len(numbers), np.bool_)
        if self.key is not None and keys is not None and (known := as_bytes(keys)) is not None:
            is_key = pc.is_in(known, value_set=self._keys)
            found |= is_key.to_numpy(zero_copy_only=False)
        if self._holds is not None and rows is not None:
            found |= self._holds(np.asarray(partitions), rows)
        of_row = partitions if isinstance(partitions, int) else np.asarray(partitions)
        for partition, runs in self.places.items() if by_place else ():
            lows = np.array([low for low, _ in runs], np.int64)
            highs = np.array([high for _, high in runs], np.int64)
            at = np.searchsorted(lows, numbers, "right") - 1
            found |= (of_row == partition) & (at >= 0) & (numbers <= highs[at])
        return found


def as_bytes(column: pa.Array) -> pa.Array | None:
    """Bytes or text in one type, whatever the writer made of them: delta-rs writes views. None: they are neither."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string_view(kind):
        column = column.cast(pa.string())
    elif pa.types.is_binary_view(kind):
        column = column.cast(pa.binary())
    elif not any(is_kind(kind) for is_kind in _BYTES):
        return None
    return column.cast(pa.large_binary())


def _numbers(column: pa.Array) -> NDArray[Any]:
    """A row without an offset is at none."""
    numbers: NDArray[Any] = pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return numbers

"""Pure: the records to erase: by key or condition, and by known places.

A place is a partition and an offset of a row of the topic's table, which no other record ever has. Records that are
only in a local log may be truncated and their offsets reused, so they add no places. Only typed tables are searched by
place, as they may lack the key or store it in another form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA

_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
)

OffsetArray = NDArray[np.int64]
# Sorted, distinct offsets by partition.
Places = dict[int, OffsetArray]
Holds = Callable[[NDArray[Any], pa.RecordBatch], NDArray[Any]]


def joined(several: Iterable[Places]) -> Places:
    """The union of several sets of places."""
    parts: dict[int, list[OffsetArray]] = {}
    for places in several:
        for partition, offsets in places.items():
            parts.setdefault(partition, []).append(offsets)
    return {partition: sorted_distinct(*each) for partition, each in parts.items()}


def sorted_distinct(*offsets: ArrayLike) -> OffsetArray:
    """Sorted, distinct offsets. (A stable sort is fast on sorted input.)"""
    found = np.sort(np.concatenate([np.asarray(each, np.int64) for each in offsets]), kind="stable")
    distinct: OffsetArray = found[np.append(True, np.diff(found) > 0)[: len(found)]]
    return distinct


class WantedRecords:
    """The records of one topic that are to be erased."""

    def __init__(
        self,
        key: bytes | None,
        places: Mapping[int, ArrayLike] | None = None,
        holds: Holds | None = None,
    ) -> None:
        """`holds` returns a mask of the rows that match the condition."""
        self.key = key
        self._holds = holds
        self._keys = pa.array([key], pa.large_binary())
        self.places: Places = {}
        """The known places."""
        self.learn(places or {})

    def learn(self, places: Mapping[int, ArrayLike]) -> bool:
        """Add places; whether any is new."""
        before = sum(map(len, self.places.values()))
        for partition, offsets in places.items():
            known = self.places.get(partition, np.empty(0, np.int64))
            self.places[partition] = sorted_distinct(known, offsets)
        return sum(map(len, self.places.values())) > before

    def known(self, partition: int, offsets: OffsetArray) -> NDArray[np.bool_]:
        """A mask of the known places."""
        places = self.places.get(partition)
        if places is None or not len(places):
            return np.zeros(len(offsets), np.bool_)
        at = np.searchsorted(places, offsets).clip(max=len(places) - 1)
        found: NDArray[np.bool_] = places[at] == offsets
        return found

    def beyond(self, ends: Mapping[int, int]) -> dict[int, int]:
        """The greatest known offset of each partition where that is not below the end."""
        last = {partition: int(each[-1]) for partition, each in self.places.items() if len(each)}
        return {partition: at for partition, at in last.items() if at >= ends.get(partition, 0)}

    @property
    def columns(self) -> frozenset[str]:
        """The columns needed to match records."""
        return frozenset({"offset", "key"} if self._holds is None else TOPIC_FILE_SCHEMA.names)

    def among(
        self,
        partitions: ArrayLike,
        offsets: pa.Array,
        keys: pa.Array | None,
        rows: pa.RecordBatch | None = None,
        *,
        by_place: bool = False,
    ) -> NDArray[np.bool_]:
        """A mask of the rows to erase; `partitions` may be one number.

        `rows` of the topic are needed for a condition; typed tables are also searched `by_place`.
        """
        numbers = _numbers(offsets)
        found = np.zeros(len(numbers), np.bool_)
        if self.key is not None and keys is not None and (known := as_bytes(keys)) is not None:
            is_key = pc.is_in(known, value_set=self._keys)
            found |= is_key.to_numpy(zero_copy_only=False)
        if self._holds is not None and rows is not None:
            found |= self._holds(np.asarray(partitions), rows)
        if by_place:
            of_row = np.broadcast_to(np.asarray(partitions), len(numbers))
            for partition in np.unique(of_row).tolist():
                found |= (of_row == partition) & self.known(partition, numbers)
        return found


def as_bytes(column: pa.Array) -> pa.Array | None:
    """Binary or text columns as large_binary, also dictionaries and views; None for other types."""
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
    """The offsets; -1 for null."""
    numbers: NDArray[Any] = pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return numbers

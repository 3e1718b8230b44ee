"""Pure: the rows of a DataFrame as records, topic by topic, and the checks of their values.

An error names the column or option, and the row. Single rows are handled only to name one. If there is a `timestamp`
column it is the record's; Spark's own sink ignores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_ds.delta.schema import TIMESTAMP_TYPE
from kafka_ds.errors import RowError
from kafka_ds.records.partitioner import NO_PARTITION
from kafka_ds.sink.columns import SinkColumns
from kafka_ds.topic.schemas import HEADERS_TYPE

__all__ = ["TopicRows", "rows_by_topic"]

_EPOCH: Final = pa.scalar(0, pa.int64()).cast(TIMESTAMP_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows:
    """Rows of one topic: key, value, headers and timestamp, the partitions that they name, and which rows they are."""

    topic: str
    records: pa.RecordBatch
    wanted: NDArray[np.int32]
    rows: NDArray[np.int64]


def rows_by_topic(
    batch: pa.RecordBatch,
    columns: SinkColumns,
    *,
    first_row: int,
    now_ms: int,
    describe: Callable[[Iterable[int]], str],
) -> Iterator[TopicRows]:
    """The rows topic by topic, each topic's in their order; ``describe`` names rows of the task.

    Raises:
        RowError: a null topic, a header without a key, a negative partition or timestamp.
    """

    def refuse(is_wrong: pa.Array, problem: str) -> None:
        places = np.flatnonzero(pc.fill_null(is_wrong, False).to_numpy(zero_copy_only=False))
        if len(places):
            raise RowError(f"{describe((places + first_row).tolist())}: {problem}")

    records = _records(batch, columns, now_ms, refuse)
    wanted = _wanted(batch, columns, refuse)
    numbers = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
    if columns.topic is not None:
        yield TopicRows(topic=columns.topic, records=records, wanted=wanted, rows=numbers)
        return
    topics = batch.column(batch.schema.get_field_index("topic"))
    refuse(topics.is_null(), "column 'topic' is null; option 'topic' would give all rows one")
    coded = topics.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    for code, topic in enumerate(coded.dictionary.to_pylist()):
        if len(coded.dictionary) == 1:
            yield TopicRows(topic=topic, records=records, wanted=wanted, rows=numbers)
            return
        places = np.flatnonzero(codes == code)
        of_topic = records.take(pa.array(places))
        yield TopicRows(topic=topic, records=of_topic, wanted=wanted[places], rows=numbers[places])


RefuseRows = Callable[[pa.Array, str], None]


def _records(
    batch: pa.RecordBatch, columns: SinkColumns, now_ms: int, refuse: RefuseRows
) -> pa.RecordBatch:
    count = batch.num_rows
    now = pa.scalar(now_ms * 1_000, pa.int64()).cast(TIMESTAMP_TYPE)

    def column(name: str, wanted: pa.DataType) -> pa.Array:
        if name not in columns.names:
            return pa.nulls(count, wanted)
        found = batch.column(batch.schema.get_field_index(name))
        return found if found.type == wanted else found.cast(wanted)

    timestamps = column("timestamp", TIMESTAMP_TYPE)
    if timestamps.null_count == count:
        timestamps = pa.repeat(now, count)
    else:
        refuse(pc.less(timestamps, _EPOCH), "column 'timestamp' lies before 1970")
        timestamps = timestamps.fill_null(now)
    headers = column("headers", HEADERS_TYPE)
    _check_headers(headers, refuse)
    arrays = [column("key", pa.binary()), column("value", pa.binary()), headers, timestamps]
    return pa.RecordBatch.from_arrays(arrays, names=["key", "value", "headers", "timestamp"])


def _check_headers(headers: pa.Array, refuse: RefuseRows) -> None:
    """A header without a key does not exist in Kafka."""
    if headers.null_count == len(headers):
        return
    pairs = headers.flatten()
    is_wrong = pc.or_(pairs.is_null(), pc.is_null(pc.struct_field(pairs, 0)))
    if not pc.any(is_wrong).as_py():
        return
    rows = pc.list_parent_indices(headers).filter(is_wrong)
    flags = np.zeros(len(headers), np.bool_)
    flags[rows.to_numpy()] = True
    refuse(pa.array(flags), "column 'headers' holds a header without a key")


def _wanted(batch: pa.RecordBatch, columns: SinkColumns, refuse: RefuseRows) -> NDArray[np.int32]:
    if "partition" not in columns.names:
        return np.full(batch.num_rows, NO_PARTITION, np.int32)
    found = batch.column(batch.schema.get_field_index("partition"))
    refuse(pc.less(found, 0), "column 'partition' is negative")
    wanted: NDArray[np.int32] = found.fill_null(NO_PARTITION).to_numpy(zero_copy_only=False)
    return wanted

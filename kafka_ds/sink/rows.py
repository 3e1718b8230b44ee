"""Pure: the rows of a DataFrame as records: which columns they need, of which types, and what may not be in them.

Rules of this file: columns, types and errors are those of Spark's Kafka sink (`key`, `value`, `headers`, `topic`,
`partition`; others say nothing), but for `timestamp`, which is the record's where it is there. An error names the
column or option, and the row. Nothing looks at single rows but to name one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_ds.lake.tables import HEADERS_TYPE, TIMESTAMP_TYPE
from kafka_ds.sink.options import SinkOptionError
from kafka_ds.wire.partitioning import NO_PARTITION

__all__ = ["Columns", "RowError", "TopicRows", "check_columns", "describe_rows", "rows_by_topic"]

# Column to the types that it may have, as Spark spells them.
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_NAMED_MAX: Final = 3
_EPOCH: Final = pa.scalar(0, pa.int64()).cast(TIMESTAMP_TYPE)


class RowError(ValueError):
    """A row that cannot be a record; the message names it, and the column or option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which of the sink's columns a DataFrame has."""

    names: frozenset[str]
    topic: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows:
    """Rows of one topic: key, value, headers and timestamp, the partitions that they name, and which rows they are."""

    topic: str
    records: pa.RecordBatch
    wanted: NDArray[np.int32]
    rows: NDArray[np.int64]


def check_columns(types: Mapping[str, str], topic: str | None) -> Columns:
    """The columns, by name and Spark's word for their type; ``topic`` is the option.

    Raises:
        SinkOptionError: naming the column or option.
    """
    if topic is None and "topic" not in types:
        raise SinkOptionError("option 'topic' must be given where there is no column 'topic'")
    if "value" not in types:
        raise SinkOptionError("column 'value' is missing; it is what is written")
    for name, allowed in _TYPES.items():
        found = types.get(name)
        if found is not None and found not in allowed:
            raise SinkOptionError(
                f"column '{name}' is {found}; it has to be {' or '.join(allowed)}"
            )
    return Columns(names=frozenset(_TYPES) & frozenset(types), topic=topic)


def describe_rows(rows: Iterable[int], spark_partition: int) -> str:
    """Rows by their places in their task, for messages."""
    listed = list(rows)
    named = ", ".join(map(str, listed[:_NAMED_MAX]))
    more = f" and {len(listed) - _NAMED_MAX} more" if len(listed) > _NAMED_MAX else ""
    return f"row{'s' if len(listed) > 1 else ''} {named}{more} of Spark partition {spark_partition}"


def rows_by_topic(
    batch: pa.RecordBatch,
    columns: Columns,
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


Refuse = Callable[[pa.Array, str], None]


def _records(
    batch: pa.RecordBatch, columns: Columns, now_ms: int, refuse: Refuse
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


def _check_headers(headers: pa.Array, refuse: Refuse) -> None:
    """Kafka knows no header without a key."""
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


def _wanted(batch: pa.RecordBatch, columns: Columns, refuse: Refuse) -> NDArray[np.int32]:
    if "partition" not in columns.names:
        return np.full(batch.num_rows, NO_PARTITION, np.int32)
    found = batch.column(batch.schema.get_field_index("partition"))
    refuse(pc.less(found, 0), "column 'partition' is negative")
    wanted: NDArray[np.int32] = found.fill_null(NO_PARTITION).to_numpy(zero_copy_only=False)
    return wanted

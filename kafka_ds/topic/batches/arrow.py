"""Pure: the kernel's columns as Arrow arrays, and back; no single row is handled here.

- Buffers are shared, not copied: an Arrow array lies in what the kernel wrote, cut to size.
- The columns of a RecordBatch are those of `schemas.TOPIC_FILE_SCHEMA`, or the requested ones of them in the same
  order.
- Arrays may come from another engine: types are cast to the table's, sliced arrays and absent columns are accepted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_ds.delta.schema import TIMESTAMP_TYPE
from kafka_ds.records import decoder
from kafka_ds.records.arrays import fixed, read_only
from kafka_ds.records.batch import NO_TIMESTAMP
from kafka_ds.records.decoder import Buffers
from kafka_ds.records.encoder import NO_BINARY, NO_HEADERS, BinaryColumn, Columns, HeaderColumns
from kafka_ds.topic.schemas import BATCH_TYPE, HEADERS_TYPE, TOPIC_FILE_SCHEMA

__all__ = ["columns_of", "record_batch", "wanted_bits"]

# The last millisecond of the year 9999, the last date of Spark, Python and Parquet readers.
TIMESTAMP_MS_MAX = 253_402_300_799_999

_BATCH_FIELDS = {
    "base_offset": decoder.BASE_OFFSET,
    "producer_id": decoder.PRODUCER_ID,
    "producer_epoch": decoder.PRODUCER_EPOCH,
    "base_sequence": decoder.BASE_SEQUENCE,
    "attributes": decoder.ATTRIBUTES,
    "max_timestamp": decoder.MAX_TIMESTAMP,
}


def wanted_bits(columns: frozenset[str]) -> int:
    """What the kernel has to write for these columns."""
    key = decoder.WANT_KEY if "key" in columns else 0
    value = decoder.WANT_VALUE if "value" in columns else 0
    headers = decoder.WANT_HEADERS if columns & {"headers", "headers_raw"} else 0
    return key | value | headers


# -- to Arrow -----------------------------------------------------------------------------------


def record_batch(
    out: Buffers, framing: NDArray[np.int64], columns: frozenset[str] | None = None
) -> pa.RecordBatch:
    """The rows that the kernel wrote; `framing` holds the row of numbers of each of their batches."""
    count = int(out.counters[decoder.ROWS])
    schema = TOPIC_FILE_SCHEMA
    if columns is not None:
        schema = pa.schema([field for field in TOPIC_FILE_SCHEMA if field.name in columns])
    source = _RowSource(out, framing, count)
    return pa.RecordBatch.from_arrays([source.column(f.name) for f in schema], schema=schema)


class _RowSource:
    """The kernel's output, one column at a time."""

    def __init__(self, out: Buffers, framing: NDArray[np.int64], count: int) -> None:
        self._out = out
        self._framing = framing
        self._count = count
        self._counts = framing[:, decoder.RECORD_COUNT]

    def column(self, name: str) -> pa.Array:
        column: pa.Array = getattr(self, f"_{name}")()
        return column

    def _offset(self) -> pa.Array:
        return _numbers(pa.int64(), self._out.offset[: self._count])

    def _leader_epoch(self) -> pa.Array:
        return self._repeated(pa.int32(), self._framing[:, decoder.LEADER_EPOCH])

    def _timestamp_type(self) -> pa.Array:
        log_append = self._framing[:, decoder.ATTRIBUTES] & decoder.LOG_APPEND_TIME_FLAG
        return self._repeated(pa.int32(), log_append >> 3)

    def _timestamp(self) -> pa.Array:
        milliseconds = self._out.timestamp[: self._count]
        no_date = self._no_date()
        if no_date is None:
            return _numbers(TIMESTAMP_TYPE, milliseconds * 1000)
        return _numbers(TIMESTAMP_TYPE, np.where(no_date, 0, milliseconds) * 1000, ~no_date)

    def _timestamp_ms(self) -> pa.Array:
        no_date = self._no_date()
        if no_date is None:
            return pa.nulls(self._count, pa.int64())
        milliseconds = self._out.timestamp[: self._count]
        return _numbers(pa.int64(), np.where(no_date, milliseconds, 0), no_date)

    def _no_date(self) -> NDArray[np.bool_] | None:
        """Which timestamps are no date of Arrow's, Parquet's and Spark's; None if all are dates."""
        # As unsigned numbers the negative ones are large: one comparison for both ends.
        milliseconds = self._out.timestamp[: self._count].view(np.uint64)
        if self._count == 0 or milliseconds.max() <= TIMESTAMP_MS_MAX:
            return None
        return milliseconds > TIMESTAMP_MS_MAX

    def _key(self) -> pa.Array:
        out, nulls = self._out, int(self._out.counters[decoder.KEY_NULLS])
        return _binary(
            pa.binary(), self._count, out.key_offsets, out.key_data, out.key_valid, nulls
        )

    def _value(self) -> pa.Array:
        out, nulls = self._out, int(self._out.counters[decoder.VALUE_NULLS])
        return _binary(
            pa.binary(), self._count, out.value_offsets, out.value_data, out.value_valid, nulls
        )

    def _headers(self) -> pa.Array:
        out, total = self._out, int(self._out.counters[decoder.HEADERS])
        if total == 0:
            return pa.nulls(self._count, HEADERS_TYPE)
        nulls = int(out.counters[decoder.HEADER_VALUE_NULLS])
        keys = _binary(pa.string(), total, out.header_key_offsets, out.header_key_data)
        values = _binary(
            pa.binary(),
            total,
            out.header_value_offsets,
            out.header_value_data,
            out.header_value_valid,
            nulls,
        )
        pairs = pa.Array.from_buffers(
            HEADERS_TYPE.value_type, total, [None], 0, children=[keys, values]
        )
        offsets = out.header_offsets[: self._count + 1]
        some = np.diff(offsets) > 0
        return pa.Array.from_buffers(
            HEADERS_TYPE,
            self._count,
            [_bitmap(some), pa.py_buffer(offsets)],
            int(self._count - np.count_nonzero(some)),
            children=[pairs],
        )

    def _headers_raw(self) -> pa.Array:
        out, raw_rows = self._out, int(self._out.counters[decoder.RAW_ROWS])
        if raw_rows == 0:
            return pa.nulls(self._count, pa.binary())
        rows = out.raw_row[:raw_rows]
        valid = np.zeros(self._count, np.bool_)
        valid[rows] = True
        lengths = np.zeros(self._count + 1, np.int32)
        lengths[rows + 1] = np.diff(out.raw_end[:raw_rows], prepend=np.int32(0))
        offsets = np.cumsum(lengths, dtype=np.int32)
        return _binary(
            pa.binary(), self._count, offsets, out.raw_data, valid, self._count - raw_rows
        )

    def _batch(self) -> pa.Array:
        framing = self._framing
        last_offset = framing[:, decoder.BASE_OFFSET] + framing[:, decoder.LAST_OFFSET_DELTA]
        children = []
        for field in BATCH_TYPE:
            position = _BATCH_FIELDS.get(field.name)
            of_batch = last_offset if position is None else framing[:, position]
            children.append(self._repeated(field.type, of_batch))
        return pa.Array.from_buffers(BATCH_TYPE, self._count, [None], 0, children=children)

    def _repeated(self, arrow_type: pa.DataType, of_batch: NDArray[np.int64]) -> pa.Array:
        """What is the same for all records of a batch."""
        narrow = of_batch.astype(arrow_type.to_pandas_dtype())
        return _numbers(arrow_type, np.repeat(narrow, self._counts))


def _numbers(
    arrow_type: pa.DataType, array: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(array))
    if valid is None:
        return pa.Array.from_buffers(arrow_type, len(array), [None, data], 0)
    return pa.Array.from_buffers(arrow_type, len(array), [_bitmap(valid), data])


def _binary(
    arrow_type: pa.DataType,
    count: int,
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: NDArray[Any] | None = None,
    nulls: int = 0,
) -> pa.Array:
    bitmap = _bitmap(valid[:count]) if valid is not None and nulls else None
    buffers = [bitmap, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(data[: offsets[count]])]
    return pa.Array.from_buffers(arrow_type, count, buffers, nulls)


def _bitmap(valid: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


# -- from Arrow ---------------------------------------------------------------------------------


def columns_of(batch: pa.RecordBatch) -> Columns:
    """The rows as the kernel takes them."""
    return Columns(
        offset=_plain(_column(batch, "offset"), np.int64),
        timestamp=_milliseconds(batch),
        leader_epoch=_plain(_column(batch, "leader_epoch"), np.int32),
        timestamp_type=_plain(_column(batch, "timestamp_type"), np.int32),
        key=_binary_column(_column(batch, "key")),
        value=_binary_column(_column(batch, "value")),
        headers=_header_columns(_column(batch, "headers"), _column(batch, "headers_raw")),
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    wanted = TOPIC_FILE_SCHEMA.field(name).type
    index = batch.schema.get_field_index(name)
    if index < 0:
        return pa.nulls(batch.num_rows, wanted)
    column = batch.column(index)
    return column if column.type == wanted else column.cast(wanted)


def _milliseconds(batch: pa.RecordBatch) -> NDArray[np.int64]:
    timestamps = _column(batch, "timestamp")
    valid = _valid(timestamps)
    microseconds = _plain(timestamps.view(pa.int64()), np.int64)
    milliseconds = microseconds // 1000
    if len(valid):
        instead = pc.fill_null(_column(batch, "timestamp_ms"), NO_TIMESTAMP)
        milliseconds = np.where(valid, milliseconds, _plain(instead, np.int64))
    return fixed(milliseconds)


def _plain(column: pa.Array, dtype: type[np.generic]) -> NDArray[Any]:
    """The numbers of a column; where it is null they are what the buffer holds."""
    start, count = column.offset, len(column)
    return fixed(read_only(column.buffers()[1], dtype)[start : start + count])


def _valid(column: pa.Array) -> NDArray[np.uint8]:
    """A byte for each row, 0 if it is null; an empty array if no row is null."""
    bitmap = column.buffers()[0]
    if bitmap is None or column.null_count == 0:
        return read_only(None, np.uint8)
    start, count = column.offset, len(column)
    skipped = start >> 3
    bits = read_only(bitmap, np.uint8)[skipped : (start + count + 7) >> 3]
    unpacked = np.unpackbits(bits, bitorder="little")
    return fixed(unpacked[start - skipped * 8 : start - skipped * 8 + count])


def _binary_column(column: pa.Array) -> BinaryColumn:
    count = len(column)
    if count == 0:
        return NO_BINARY
    _, offsets, data = column.buffers()
    within = read_only(offsets, np.int32)[column.offset : column.offset + count + 1]
    return BinaryColumn(fixed(within), read_only(data, np.uint8), _valid(column))


def _header_columns(headers: pa.Array, raw: pa.Array) -> HeaderColumns:
    # An array without a single value has no use for offsets: the kernel takes none as "no headers".
    of_raw = NO_BINARY if raw.null_count == len(raw) else _binary_column(raw)
    if headers.null_count == len(headers):
        return NO_HEADERS._replace(raw=of_raw)
    start, count = headers.offset, len(headers)
    offsets = read_only(headers.buffers()[1], np.int32)[start : start + count + 1]
    first = int(offsets[0])
    pairs = headers.values.slice(first, int(offsets[-1]) - first)
    keys, values = _binary_column(pairs.field(0)), _binary_column(pairs.field(1))
    return HeaderColumns(fixed(offsets - offsets[0]), _valid(headers), keys, values, of_raw)

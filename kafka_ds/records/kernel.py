"""Shell: converts records to columns and back, with loops that numba compiles.

- Compiled code is cached: compiling takes seconds, loading a tenth of a second. numba's own cache folder does not work
  if neither the source tree nor the home is writable (`kafka_ds.records.code_folder`).
- Each loop has one declared signature. For another kind of array numba would compile again, so inputs go through
  `read_only`.
- This module imports numba; workers and executors import it, brokers do not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from glob import escape, glob
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from kafka_ds.records import decoder, encoder
from kafka_ds.records.arrays import fixed, read_only
from kafka_ds.records.code_folder import cache_folder
from kafka_ds.records.encoder import NO_BINARY, NO_HEADERS

__all__ = [
    "EVERYTHING",
    "Scratch",
    "cache_folder",
    "compiled",
    "decode",
    "encode",
    "scan",
    "warm_up",
]

LOGGER = logging.getLogger(__name__)
EVERYTHING = decoder.WANT_KEY | decoder.WANT_VALUE | decoder.WANT_HEADERS

# The usual limits of one call of `decode`. Its buffers are reused: fresh memory costs more than the loop. (`pop` and
# `append` are atomic, so threads do not share a buffer.)
ROWS_PER_CALL = 100_000
BYTES_PER_CALL = 8 << 20
_idle_buffers: list[decoder.Buffers] = []

# The most batches of one call of the scan loop (8 MiB of numbers, of which unused pages take no memory).
SCAN_ROWS = 1 << 16


# numba's annotations lack both.
_config: Any = numba.config
_typeof: Any = numba.typeof


class _Loops(NamedTuple):
    scan: Callable[..., tuple[int, int, int]]
    decode: Callable[..., None]
    encode: Callable[..., int]


# -- compilation --------------------------------------------------------------------------------


def warm_up() -> None:
    """Compile the loops, or load them from the cache."""
    _loops()


@lru_cache(maxsize=1)
def _loops() -> _Loops:
    no_rows = np.empty((0, 1), np.int64)
    fixed_rows = fixed(no_rows)
    data = read_only(None, np.uint8)
    longs, ints = read_only(None, np.int64), read_only(None, np.int32)
    columns = encoder.Columns(longs, longs, ints, ints, NO_BINARY, NO_BINARY, NO_HEADERS)
    with cache_folder() as folder:
        if folder is not None and not glob(os.path.join(escape(folder), "*", "decoder.*")):
            LOGGER.info("Compiling loops into %s, once: this takes up to half a minute", folder)
        return _Loops(
            scan=compiled(folder, decoder.scan, (data, 0, no_rows)),
            decode=compiled(
                folder, decoder.decode, (data, fixed_rows, 0, new_buffers(0, 0), np.empty(0, "u1"))
            ),
            encode=compiled(
                folder, encoder.encode, (columns, 0, 0, np.empty(0, np.uint8), no_rows)
            ),
        )


def compiled(folder: str | None, function: Callable[..., Any], example: tuple[Any, ...]) -> Any:
    """The loop, compiled for the types of the example's arguments, or loaded from the folder."""
    signature = tuple(_typeof(argument) for argument in example)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
    if folder is not None:
        # The decorator reads this setting; other users of numba keep theirs.
        previous, _config.CACHE_DIR = _config.CACHE_DIR, folder
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (OSError, RuntimeError, EOFError, ValueError, ImportError, AttributeError):
            # The cache folder or its content is not usable: compile without it.
            pass
        finally:
            _config.CACHE_DIR = previous
    return numba.njit(signature, **options)(function)


# -- arrays -------------------------------------------------------------------------------------


def new_buffers(row_count: int, payload_bytes: int) -> decoder.Buffers:
    """Output buffers for so many records in so many bytes.

    Each has the size of the worst case; pages that are not written take no memory. This saves a first pass over the
    records, which would take half of the time.
    """
    header_count = payload_bytes // 2 + 1
    return decoder.Buffers(
        offset=np.empty(row_count, np.int64),
        timestamp=np.empty(row_count, np.int64),
        key_offsets=_offsets(row_count),
        key_data=np.empty(payload_bytes, np.uint8),
        key_valid=np.empty(row_count, np.uint8),
        value_offsets=_offsets(row_count),
        value_data=np.empty(payload_bytes, np.uint8),
        value_valid=np.empty(row_count, np.uint8),
        header_offsets=_offsets(row_count),
        header_key_offsets=_offsets(header_count),
        header_key_data=np.empty(payload_bytes, np.uint8),
        header_value_offsets=_offsets(header_count),
        header_value_data=np.empty(payload_bytes, np.uint8),
        header_value_valid=np.empty(header_count, np.uint8),
        raw_row=np.empty(row_count, np.int32),
        raw_end=np.empty(row_count, np.int32),
        raw_data=np.empty(payload_bytes, np.uint8),
        counters=np.zeros(decoder.COUNTERS, np.int64),
        saved=np.zeros(decoder.COUNTERS, np.int64),
    )


def trimmed(out: decoder.Buffers, wanted: int) -> decoder.Buffers:
    """A copy of what was written, so that the buffers can be reused."""
    counters = out.counters
    rows, headers, raw_rows = (
        int(counters[index]) for index in (decoder.ROWS, decoder.HEADERS, decoder.RAW_ROWS)
    )
    keys = rows if wanted & decoder.WANT_KEY else -1
    values = rows if wanted & decoder.WANT_VALUE else -1
    value_bytes = int(counters[decoder.VALUE_BYTES])
    value_data = out.value_data[:value_bytes]
    return decoder.Buffers(
        offset=out.offset[:rows].copy(),
        timestamp=out.timestamp[:rows].copy(),
        key_offsets=out.key_offsets[: keys + 1].copy(),
        key_data=out.key_data[: counters[decoder.KEY_BYTES]].copy(),
        key_valid=out.key_valid[: rows if counters[decoder.KEY_NULLS] else 0].copy(),
        value_offsets=out.value_offsets[: values + 1].copy(),
        # Values are usually most of the payload: then the result keeps their buffer, which is new for each call.
        value_data=value_data if 2 * value_bytes > len(out.value_data) else value_data.copy(),
        value_valid=out.value_valid[: rows if counters[decoder.VALUE_NULLS] else 0].copy(),
        header_offsets=out.header_offsets[: rows + 1 if headers else 0].copy(),
        header_key_offsets=out.header_key_offsets[: headers + 1].copy(),
        header_key_data=out.header_key_data[: counters[decoder.HEADER_KEY_BYTES]].copy(),
        header_value_offsets=out.header_value_offsets[: headers + 1].copy(),
        header_value_data=out.header_value_data[: counters[decoder.HEADER_VALUE_BYTES]].copy(),
        header_value_valid=out.header_value_valid[:headers].copy(),
        raw_row=out.raw_row[:raw_rows].copy(),
        raw_end=out.raw_end[:raw_rows].copy(),
        raw_data=out.raw_data[: counters[decoder.RAW_BYTES]].copy(),
        counters=counters.copy(),
        saved=out.saved,
    )


def _offsets(count: int) -> NDArray[np.int32]:
    offsets = np.empty(count + 1, np.int32)
    offsets[0] = 0
    return offsets


# -- the loops ----------------------------------------------------------------------------------


def scan(data: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int, int]:
    """A row of `decoder.BATCH_FIELDS` for each batch, the position where the scan stopped, and why."""
    loops = _loops()
    parts: list[NDArray[np.int64]] = []
    position, reason = 0, decoder.OUTPUT_FULL
    while reason == decoder.OUTPUT_FULL:
        capacity = min((len(data) - position) // decoder.LEGACY_BYTES_MIN + 1, SCAN_ROWS)
        rows = np.empty((capacity, decoder.BATCH_FIELDS), np.int64)
        count, position, reason = loops.scan(data, position, rows)
        parts.append(rows[:count])
    return parts[0] if len(parts) == 1 else np.concatenate(parts), position, reason


def decode(
    sources: Sequence[tuple[NDArray[np.uint8], NDArray[np.int64]]], *, wanted: int = EVERYTHING
) -> tuple[decoder.Buffers, NDArray[np.bool_]]:
    """The records of all batches as columns, and which batches were decoded.

    A source is a buffer and the rows of its batches. Their START and END must be in the buffer, and their record counts
    must not exceed what their bytes can hold.
    """
    loops = _loops()
    row_count = sum(int(rows[:, decoder.RECORD_COUNT].sum()) for _, rows in sources)
    payload_bytes = sum(
        int((rows[:, decoder.END] - rows[:, decoder.START]).sum()) for _, rows in sources
    )
    assert payload_bytes < 1 << 31, "offsets of 32 bits"
    is_usual = row_count <= ROWS_PER_CALL and payload_bytes <= BYTES_PER_CALL
    if is_usual:
        usual = _idle_buffers.pop() if _idle_buffers else new_buffers(ROWS_PER_CALL, BYTES_PER_CALL)
        usual.counters[:] = 0
        out = usual._replace(value_data=np.empty(payload_bytes, np.uint8))
    else:
        out = new_buffers(row_count, payload_bytes)
    decoded = np.zeros(sum(len(rows) for _, rows in sources), np.uint8)
    done = 0
    for data, rows in sources:
        loops.decode(data, fixed(rows), wanted, out, decoded[done : done + len(rows)])
        done += len(rows)
    if is_usual:
        out = trimmed(out, wanted)
        _idle_buffers.append(usual)
    return out, decoded.view(np.bool_)


def encode(
    columns: encoder.Columns,
    *,
    first_offset: int,
    bytes_max: int,
    scratch: Scratch | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All rows as batches with room for their headers, and a row of `encoder.BATCH_FIELDS` for each.

    They are in new memory, or in the unused part of `scratch`.
    """
    loops = _loops()
    row_count = len(columns.offset)
    room = encode_room(columns)
    out = np.empty(room, np.uint8) if scratch is None else scratch.room(room)
    batches = np.empty((row_count, encoder.BATCH_FIELDS), np.int64)
    count = loops.encode(columns, first_offset, bytes_max, out, batches)
    if scratch is not None and count:
        scratch.used += int(batches[count - 1, encoder.END])
    return out, batches[:count]


class Scratch:
    """Memory that successive calls of `encode` write to: fresh memory costs more than the loop.

    `clear` invalidates what was written.
    """

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)
        self.used = 0

    def room(self, size_bytes: int) -> NDArray[np.uint8]:
        """Memory of this size that nothing uses yet."""
        if len(self._data) - self.used < size_bytes:
            # Views of the former memory stay valid.
            self._data, self.used = np.empty(size_bytes, np.uint8), 0
        return self._data[self.used : self.used + size_bytes]

    def clear(self, kept_bytes: int) -> None:
        """Start over; memory of more than so many bytes is released."""
        self.used = 0
        if len(self._data) > kept_bytes:
            self._data = np.empty(0, np.uint8)


def encode_room(columns: encoder.Columns) -> int:
    """The most bytes that these rows need."""
    row_count = len(columns.offset)
    headers = columns.headers
    header_count = len(headers.keys.offsets)
    room = row_count * (encoder.RECORD_OVERHEAD_BYTES_MAX + encoder.HEADER_BYTES)
    room += header_count * encoder.HEADER_OVERHEAD_BYTES_MAX
    for column in (columns.key, columns.value, headers.keys, headers.values, headers.raw):
        room += _data_bytes(column)
    return room


def _data_bytes(column: encoder.BinaryColumn) -> int:
    return int(column.offsets[-1] - column.offsets[0]) if len(column.offsets) else 0

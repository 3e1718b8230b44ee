"""Pure: which rows of an Arrow column match.

Numpy on Arrow's own buffers. Arrow's compute functions would do, but taking a Python number or list makes pyarrow
import pandas, which costs each of Spark's Python workers 0.2 s and 40 MiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kafka_ds.source.filters.intervals import HIGHEST, LOWEST, Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {4: np.int32, 8: np.int64}


def within(column: pa.Array, wanted: Intervals) -> pa.Array | None:
    """Which numbers (or times, in the column's own unit) lie in the set; a null does not. None where all do."""
    numbers = _numbers(column)
    found = np.zeros(len(numbers), np.bool_)
    for start, end in wanted:
        # A bound beyond the type's own range bounds nothing.
        low = numbers >= start if start > LOWEST else True
        high = numbers <= end - 1 if end < HIGHEST else True
        found |= np.logical_and(low, high)
    if column.null_count:
        found &= _valid(column)
    return None if found.all() else boolean(found)


def among(column: pa.Array, wanted: frozenset[bytes]) -> pa.Array:
    """Which bytes are among these; a null is not."""
    import pyarrow.compute as pc

    lengths = np.fromiter(map(len, wanted), np.int32, len(wanted))
    offsets = np.concatenate(([0], np.cumsum(lengths)), dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(wanted))]
    values = pa.Array.from_buffers(pa.binary(), len(wanted), buffers)
    return pc.is_in(column.cast(pa.binary()), value_set=values)


def boolean(mask: NDArray[np.bool_]) -> pa.Array:
    """The mask as Arrow has it."""
    bits = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(bits)])


def repeated(value: str | int, count: int) -> pa.Array:
    """The same text or 32-bit number again and again."""
    if isinstance(value, int):
        numbers = np.full(count, value, np.int32)
        return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(numbers)])
    text = value.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(text)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _numbers(column: pa.Array) -> NDArray[Any]:
    dtype = _DTYPES[column.type.bit_width // 8]
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), dtype)
    return np.frombuffer(data, dtype)[column.offset : column.offset + len(column)]


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    bitmap = column.buffers()[0]
    if bitmap is None:
        return np.ones(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)

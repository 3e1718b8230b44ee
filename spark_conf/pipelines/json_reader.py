"""Pure: JSON values as the columns that a table has: whole Arrow batches by pyarrow's reader, which knows their types.

A value is read if it is one JSON object, each field has a column, and its value is of the column's own type. Any other
value becomes null, and `decoder` looks at what it is. A value that is read has there the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from kafka_ds.topic.typed_columns import is_of_clashes
from spark_conf.pipelines.arrow_rows import in_places
from spark_conf.pipelines.kinds import BIGINT, BOOLEAN, DOUBLE, STRING, ArrayOf, Kind, ObjectOf

_SCALARS: Final = {
    BIGINT: pa.int64(),
    DOUBLE: pa.float64(),
    BOOLEAN: pa.bool_(),
    STRING: pa.string(),
}
# pyarrow takes or refuses values together: those refused are tried again in halves. With more refusals than one for so
# many values, and some, the rest is left.
VALUES_PER_REFUSAL: Final = 8
REFUSALS_MIN: Final = 16
BYTES_AT_ONCE: Final = 8 << 20
# Each value becomes a line, an object with the value's index. A value that is no JSON document by itself makes the line
# none, either: a string ends before the line does, and what closes the object follows.
_BEFORE_INDEX, _BEFORE_VALUE, _AFTER, _NOTHING = (
    pa.scalar(text, pa.binary()) for text in (b'{"i":', b',"v":', b"}\n", b"")
)


def object_type(columns: ObjectOf) -> pa.StructType:
    """The type of objects with these fields, without those whose values `decoder` must look at."""
    found = []
    for name, kind in columns.fields:
        of_field = _type(kind)
        if of_field is not None and not is_of_clashes(name):
            found.append(pa.field(name, of_field))
    return pa.struct(found)


def _type(kind: Kind) -> pa.DataType | None:
    if isinstance(kind, ObjectOf):
        found = object_type(kind)
        return found if found.num_fields else None
    if isinstance(kind, ArrayOf):
        element = _type(kind.element)
        return None if element is None else pa.list_(element)
    return _SCALARS.get(kind)


def json_reader(objects: pa.StructType) -> Callable[[pa.Array], pa.Array]:
    """A function: binary values to objects of this type, null for each value that is null or is not read."""

    def read(values: pa.Array) -> pa.Array:
        present = values.drop_null().cast(pa.binary())
        found = pa.concat_arrays(
            [pa.nulls(0, objects), *_JsonBatchReader(objects, len(present)).read(present)]
        )
        return in_places(found, values.is_valid())

    return read


class _JsonBatchReader:
    def __init__(self, objects: pa.StructType, count: int) -> None:
        self._objects = objects
        self._options = arrow_json.ParseOptions(
            explicit_schema=pa.schema([("i", pa.int64()), ("v", objects)]),
            newlines_in_values=True,
            unexpected_field_behavior="error",
        )
        self._refusals_left = REFUSALS_MIN + count // VALUES_PER_REFUSAL

    def read(self, values: pa.Array) -> Iterator[pa.Array]:
        """The values in some arrays."""
        count = len(values)
        if not count:
            return
        if values.nbytes <= BYTES_AT_ONCE or count == 1:
            found = self._together(values)
            if found is not None:
                yield found
                return
            self._refusals_left -= 1
            if count == 1 or self._refusals_left < 0:
                yield pa.nulls(count, self._objects)
                return
        yield from self.read(values.slice(0, count // 2))
        yield from self.read(values.slice(count // 2))

    def _together(self, values: pa.Array) -> pa.Array | None:
        """All of these; None if one of them is anything else than such an object."""
        index = pa.array(np.arange(len(values)))
        digits = index.cast(pa.string()).cast(pa.binary())
        lines = pc.binary_join_element_wise(
            _BEFORE_INDEX, digits, _BEFORE_VALUE, values, _AFTER, _NOTHING
        )
        size_bytes = pc.sum(pc.binary_length(lines)).as_py()
        text = pa.BufferReader(lines.buffers()[2].slice(0, size_bytes))
        options = arrow_json.ReadOptions(use_threads=False, block_size=size_bytes)
        try:
            lines.cast(pa.string())  # It is UTF-8: the reader does not look.
            table = arrow_json.read_json(text, options, self._options).combine_chunks()
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(index) or not table["i"].chunk(0).equals(index):
            return None
        found = table["v"].chunk(0)
        return None if found.null_count or _has_infinite(found) else found


def _has_infinite(values: pa.Array) -> bool:
    """Whether there is an Infinity or a NaN: pyarrow takes them, though they are no JSON."""
    if pa.types.is_struct(values.type):
        return any(map(_has_infinite, values.flatten()))
    if pa.types.is_list(values.type):
        return _has_infinite(values.flatten())
    if not pa.types.is_floating(values.type):
        return False
    return pc.all(pc.is_finite(values)).as_py() is False

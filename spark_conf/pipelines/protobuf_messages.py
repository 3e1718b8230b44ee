"""Shell: serialized Protobuf messages of one type → Arrow, whole batches at a time, by ptars.

A batch that cannot be read is split in halves, down to the malformed messages. Integers are `bigint` and floats
`double`, as in all typed tables; `uint64` is a decimal, and an enum its value's name. Recursive messages and those
without a fixed shape (`Struct`) become Protobuf JSON: ptars reads them as bytes, which is the same encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Error as MessageError
from google.protobuf.message_factory import GetMessageClass
from ptars import HandlerPool, PtarsConfig

# Types without a fixed shape, types that no column type fits, and those whose invalid values ptars reads as null.
_AS_JSON: Final = {
    *(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Duration", "FieldMask")),
    "google.type.Date",
    "google.type.TimeOfDay",
}  # fmt: skip
# The years 1 to 9999, which every engine supports.
_TIMESTAMPS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)


class UnreadableMessage(ValueError):
    """Some bytes are not a message of this type, or no column can hold the message."""


class MessageType:
    """The message type with the full `name` in `files`, a serialized FileDescriptorSet with all imports.

    Raises:
        ValueError: ptars does not read it: it has groups, or an edition, or two fields of one camel-case name.
    """

    def __init__(self, files: bytes, name: str) -> None:
        config = PtarsConfig(timestamp_unit="us", enum_repr="string", map_value_nullable=True)
        with _raised_as(ValueError):
            self._descriptor = _pool(files).FindMessageTypeByName(name)
            self._json_fields = _fields_as_json(self._descriptor)
            read = _pool(_with_bytes(files, self._json_fields)).FindMessageTypeByName(name)
            self._handler = HandlerPool([read.file], config=config).get_for_message(read)
            self.type: pa.StructType = self.read(pa.array([], pa.binary())).type

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        """The messages as rows; null is read as an empty message.

        Raises:
            UnreadableMessage: at least one message is malformed.
        """
        with _raised_as(UnreadableMessage):
            batch = self._handler.array_to_record_batch(messages)
        return self._struct(batch.to_struct_array(), self._descriptor)

    def read_each(self, messages: pa.BinaryArray) -> pa.StructArray:
        """The messages as rows; null for a message that is null or malformed."""
        read = pa.chunked_array(list(self._halves(messages)), self.type).combine_chunks()
        return pc.if_else(messages.is_valid(), read, pa.scalar(None, self.type))

    def _halves(self, messages: pa.BinaryArray) -> Iterator[pa.StructArray]:
        try:
            yield self.read(messages)
        except UnreadableMessage:
            if len(messages) == 1:
                yield pa.nulls(1, self.type)
                return
            half = len(messages) // 2
            yield from self._halves(messages[:half])
            yield from self._halves(messages[half:])

    # -- ptars' types to the table's ------------------------------------------------------------

    def _struct(self, rows: pa.StructArray, of: Descriptor) -> pa.StructArray:
        columns: dict[str, pa.Array] = {}
        for place, each in enumerate(rows.type):
            column = self._field(rows.field(place), of.fields_by_name[each.name])
            if column is not None:
                columns[each.name] = column
        fields = [pa.field(name, column.type) for name, column in columns.items()]
        return pa.StructArray.from_arrays(
            list(columns.values()), fields=fields, mask=rows.is_null()
        )

    def _field(self, column: pa.Array, of: FieldDescriptor) -> pa.Array | None:
        if pa.types.is_map(column.type):
            key, value = (of.message_type.fields_by_name[name] for name in ("key", "value"))
            keys, items = self._value(column.keys, key), self._value(column.items, value)
            return None if items is None else pa.MapArray.from_arrays(column.offsets, keys, items)
        if of.is_repeated:
            values = self._value(column.values, of)
            return None if values is None else pa.ListArray.from_arrays(column.offsets, values)
        return self._value(column, of)

    def _value(self, column: pa.Array, of: FieldDescriptor) -> pa.Array | None:
        """None for a message without fields."""
        kind = column.type
        if pa.types.is_struct(kind):
            rows = self._struct(column, of.message_type)
            return rows if rows.type.num_fields else None
        if (of.containing_type.full_name, of.name) in self._json_fields:
            return _as_json(column, of.message_type)
        if pa.types.is_timestamp(kind) and not _is_between(column, _TIMESTAMPS):
            raise UnreadableMessage("a timestamp is outside the years 1 to 9999")
        if pa.types.is_uint64(kind):
            return column.cast(pa.decimal128(20, 0))
        if pa.types.is_integer(kind):
            return column.cast(pa.int64())
        return column.cast(pa.float64()) if pa.types.is_float32(kind) else column


@lru_cache(maxsize=256)
def message_type(files: bytes, name: str) -> MessageType:
    """A message type, created once per process."""
    return MessageType(files, name)


@contextmanager
def _raised_as(error: type[ValueError]) -> Iterator[None]:
    """Raise what the libraries say of a schema or a message as this error."""
    try:
        yield
    except (ValueError, TypeError) as problem:
        raise error(str(problem)) from None
    except BaseException as problem:
        # Some schemas, and lengths beyond the end, make ptars panic, and PanicException is not an Exception.
        if type(problem).__name__ != "PanicException":
            raise
        raise error(str(problem)) from None


def _is_between(column: pa.Array, bounds: tuple[int, int]) -> bool:
    found = pc.min_max(column.cast(pa.int64()))
    least, most = found["min"].as_py(), found["max"].as_py()
    return least is None or (bounds[0] <= least and most <= bounds[1])


def _as_json(column: pa.Array, of: Descriptor) -> pa.Array:
    """Serialized messages as Protobuf JSON; a duration without its quotes."""
    made = GetMessageClass(of)

    def text(message: bytes) -> str:
        document: str = json_format.MessageToJson(
            made.FromString(message),
            preserving_proto_field_name=True,
            indent=None,
            ensure_ascii=False,
        )
        return document[1:-1] if of.full_name == "google.protobuf.Duration" else document

    try:
        texts = [None if each is None else text(each) for each in column.to_pylist()]
    except (ValueError, MessageError, json_format.Error) as problem:
        raise UnreadableMessage(str(problem)) from None
    return pa.array(texts, pa.string())


# -- descriptors --------------------------------------------------------------------------------


def _pool(files: bytes) -> DescriptorPool:
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(files).file:
        if each.syntax == "editions":
            raise ValueError(f"{each.name} has an edition, which is not supported: use proto3")
        pool.Add(each)
    return pool


def _fields_as_json(of: Descriptor) -> frozenset[tuple[str, str]]:
    """The fields, by message and name, whose message type is recursive through the field or in `_AS_JSON`."""
    reached: dict[str, set[str]] = {}
    fields: list[FieldDescriptor] = []
    waiting = [of]
    while waiting:
        each = waiting.pop()
        if each.full_name in reached or each.full_name in _AS_JSON:
            continue
        within = [field for field in each.fields if field.message_type is not None]
        if any(field.type == FieldDescriptor.TYPE_GROUP for field in within):
            raise ValueError(f"{each.full_name} has a group, which is not supported")
        reached[each.full_name] = {field.message_type.full_name for field in within}
        fields += within
        waiting += [field.message_type for field in within]
    for through in reached:
        for names in reached.values():
            if through in names:
                names |= reached[through]
    return frozenset(
        (field.containing_type.full_name, field.name)
        for field in fields
        if not field.message_type.GetOptions().map_entry
        and (
            field.message_type.full_name in _AS_JSON
            or field.containing_type.full_name in reached.get(field.message_type.full_name, ())
        )
    )


def _with_bytes(files: bytes, fields: frozenset[tuple[str, str]]) -> bytes:
    """The files with the type of these fields changed to bytes."""
    found = FileDescriptorSet.FromString(files)

    def change(message: DescriptorProto, name: str) -> None:
        for field in message.field:
            if (name, field.name) in fields:
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
        for nested in message.nested_type:
            change(nested, f"{name}.{nested.name}")

    for file in found.file:
        for message in file.message_type:
            change(message, f"{file.package}.{message.name}" if file.package else message.name)
    return bytes(found.SerializeToString())

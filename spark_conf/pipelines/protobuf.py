"""Shell: Protobuf with schemas from a registry: protoc compiles the schemas, and executors read whole Arrow batches.

A frame names a message type by its indexes in the schema. One UDF reads all message types of a batch into a struct
with a field for each of them.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from kafka_ds.errors import OptionError
from spark_conf.pipelines.arrow_rows import in_places
from spark_conf.pipelines.registry import RegisteredSchema, SchemaRegistry
from spark_conf.pipelines.schema_evolution import TextPlace
from spark_conf.pipelines.schema_names import PAYLOAD, DecodedSchema, SchemaName, registered_schema

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from pyspark.sql import DataFrame

_MAIN: Final = "kafka_ds_schema.proto"
PROTOC_TIMEOUT_S: Final = 60.0
# Apicurio's serializer in Java registers a map as the list of entries that it is, marked by an option that protoc takes
# from no text.
_MAP_ENTRY: Final = re.compile(r"\boption\s+map_entry\s*=\s*true\s*;")
_MAP_MARK: Final = "kafka_ds_map_entry"
# A message type: its compiled files and its full name.
_CompiledMessage = tuple[bytes, str]


class ProtobufReader:
    """Reads Protobuf with the schemas of a registry. Raises OptionError if a package is missing."""

    has_messages = True

    def __init__(self, registry: SchemaRegistry) -> None:
        try:
            import grpc_tools  # noqa: F401
            import ptars  # noqa: F401
        except ImportError as problem:
            raise OptionError(
                f"lake.table.*.format=protobuf needs ptars and grpcio-tools: {problem}"
            ) from None
        self._registry = registry

    def read(
        self, framed: DataFrame, names: Sequence[tuple[SchemaName, TextPlace]], column: str
    ) -> tuple[DataFrame, list[DecodedSchema], dict[SchemaName, str]]:
        """See `SchemaReader`."""
        messages: dict[SchemaName, _CompiledMessage] = {}
        kinds: dict[SchemaName, t.StructType] = {}
        problems: dict[SchemaName, str] = {}
        for name, _ in names:
            schema = registered_schema(self._registry, name, "Protobuf")
            if isinstance(schema, str):
                problems[name] = schema
                continue
            try:
                message = _message_of(schema, name)
                kinds[name] = _type_of(message)
            except ValueError as problem:
                problems[name] = f"schema {name} cannot be read: {problem}"
            else:
                messages[name] = message
        if not messages:
            return framed, [], problems
        which, own = f"_{column}_which", f"_{column}_read"
        of_name = f.lit(None).cast("int")
        for number, name in enumerate(messages):
            of_name = f.when(name.matches(), number).otherwise(of_name)
        kind = t.StructType([t.StructField(f"m{n}", each) for n, each in enumerate(kinds.values())])
        # PySpark infers the UDF's kind from its type hints.
        decode = arrow_udf(_decoder(list(messages.values())), kind)  # type: ignore[call-overload]
        read = framed.withColumn(which, of_name).withColumn(own, decode(which, PAYLOAD))
        first = dict(names)
        schemas = [
            DecodedSchema(
                name=name,
                first=first[name],
                type=kinds[name],
                value=f.col(own)[f"m{number}"],
                is_read=f.col(own)[f"m{number}"].isNotNull(),
            )
            for number, name in enumerate(messages)
        ]
        return read, schemas, problems


def _type_of(message: _CompiledMessage) -> t.StructType:
    from spark_conf.pipelines.protobuf_messages import message_type

    return from_arrow_schema(pa.schema(list(message_type(*message).type)))


def _decoder(messages: list[_CompiledMessage]) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """A function that reads each payload as the message type with the given number; null if it has none."""

    def decode(which: pa.Array, payloads: pa.Array) -> pa.Array:
        from spark_conf.pipelines.protobuf_messages import message_type

        read = []
        for number, message in enumerate(messages):
            is_its = pc.fill_null(pc.equal(which, number), False)
            rows = message_type(*message).read_each(payloads.filter(is_its))
            read.append(in_places(rows, is_its))
        return pa.StructArray.from_arrays(read, [f"m{n}" for n in range(len(messages))])

    return decode


# -- schemas ------------------------------------------------------------------------------------


def _message_of(schema: RegisteredSchema, name: SchemaName) -> _CompiledMessage:
    """The message type that a frame names. Raises ValueError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files = compiled(schema.text, tuple(sorted(schema.references.items())))
    assert name.message is not None
    main = next(each for each in FileDescriptorSet.FromString(files).file if each.name == _MAIN)
    within: Sequence[DescriptorProto] = main.message_type
    words = [main.package] if main.package else []
    for number in _numbers(bytes.fromhex(name.message)):
        if not 0 <= number < len(within):
            raise ValueError("it has no message with this index")
        words.append(within[number].name)
        within = within[number].nested_type
    return files, ".".join(words)


def _numbers(place: bytes) -> list[int]:
    """The message indexes in a frame, outermost first; a single 0 stands for the first message."""
    numbers: list[int] = []
    number = shift = 0
    for byte in place:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append((number >> 1) ^ -(number & 1))
            number = shift = 0
    return numbers[1:] or [0]


@lru_cache(maxsize=256)
def compiled(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """A schema and all that it imports, as a serialized FileDescriptorSet. Raises ValueError."""
    import google.type
    import grpc_tools
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with tempfile.TemporaryDirectory() as folder:
        compiled_before = FileDescriptorSet()
        for name, each in ((_MAIN, text), *references):
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"invalid import {name}")
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _descriptor(each)
            if descriptor is None:
                path.write_text(_MAP_ENTRY.sub(f'reserved "{_MAP_MARK}";', each))
            else:
                descriptor.name = name
                compiled_before.file.append(descriptor)
        before = Path(folder, "before")
        before.write_bytes(compiled_before.SerializeToString())
        # google/protobuf and google/type.
        well_known = [
            Path(grpc_tools.__path__[0]) / "_proto",
            *(Path(each).parent.parent for each in google.type.__path__),
        ]
        try:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "grpc_tools.protoc",
                    *(f"-I{each}" for each in (folder, *well_known)),
                    *([f"--descriptor_set_in={before}"] if compiled_before.file else ()),
                    "--include_imports",
                    f"--descriptor_set_out={folder}/compiled",
                    _MAIN,
                ],
                capture_output=True,
                timeout=PROTOC_TIMEOUT_S,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"protoc took more than {PROTOC_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            raise ValueError("; ".join(done.stderr.splitlines()))
        files = FileDescriptorSet.FromString(Path(folder, "compiled").read_bytes())
    for file in files.file:
        _mark_maps(file.message_type)
    serialized: bytes = files.SerializeToString()
    return serialized


def _mark_maps(messages: Sequence[DescriptorProto]) -> None:
    for message in messages:
        if _MAP_MARK in message.reserved_name:
            message.reserved_name.remove(_MAP_MARK)
            message.options.map_entry = True
        _mark_maps(message.nested_type)


def _descriptor(text: str) -> FileDescriptorProto | None:
    """A schema that was registered as a descriptor, as confluent-kafka does; not every registry returns its text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None

"""Shell: Avro with schemas from a registry, read by Spark's `from_avro`, once for each schema of a batch.

A value is decoded with its writer's schema and a sentinel that is appended to it. A value that is too short or too
long leaves no intact sentinel, and is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.avro.functions import from_avro

from spark_conf.pipelines.avro_schema import with_references
from spark_conf.pipelines.registry import SchemaRegistry
from spark_conf.pipelines.schema_evolution import TextPlace
from spark_conf.pipelines.schema_names import PAYLOAD, DecodedSchema, SchemaName, registered_schema
from spark_conf.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SENTINEL: Final = b"kafka-ds"
_WITH_SENTINEL: Final = """{"type":"record","name":"KafkaDsValue","fields":[{"name":"value","type":%s},
{"name":"sentinel","type":{"type":"fixed","name":"KafkaDsSentinel","size":8}}]}"""


def check_names(kind: t.DataType) -> None:
    """Raise ValueError if two fields of a record differ in case alone: Spark could not tell them apart."""
    if isinstance(kind, t.ArrayType):
        check_names(kind.elementType)
    if isinstance(kind, t.MapType):
        check_names(kind.valueType)
    if isinstance(kind, t.StructType):
        spelled: dict[str, str] = {}
        for each in kind:
            other = spelled.setdefault(each.name.lower(), each.name)
            if other != each.name:
                raise ValueError(f"fields {other} and {each.name} differ in case alone")
            check_names(each.dataType)


class AvroReader:
    """Reads Avro with the schemas of a registry."""

    has_messages = False

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def read(
        self, framed: DataFrame, names: Sequence[tuple[SchemaName, TextPlace]], column: str
    ) -> tuple[DataFrame, list[DecodedSchema], dict[SchemaName, str]]:
        """See `SchemaReader`."""
        read = framed.withColumn(PAYLOAD, f.concat(PAYLOAD, f.lit(_SENTINEL)))
        schemas: list[DecodedSchema] = []
        problems: dict[SchemaName, str] = {}
        for place, (name, first) in enumerate(names):
            schema = registered_schema(self._registry, name, "Avro")
            if isinstance(schema, str):
                problems[name] = schema
                continue
            try:
                text = with_references(schema.text, schema.references)
                value = from_avro(PAYLOAD, _WITH_SENTINEL % text, {"mode": "PERMISSIVE"})
                kind = read.select(value.alias("each")).schema["each"].dataType
                check_names(kind)
            except (ValueError, LookupError, PySparkException, Py4JError) as problem:
                problems[name] = f"schema {name} cannot be read: {reason(problem)}"
                continue
            assert isinstance(kind, t.StructType)
            own = f"_{column}_{place}"
            read = read.withColumn(own, f.when(name.matches(), value))
            is_read = f.col(own)["sentinel"] == f.lit(_SENTINEL)
            schemas.append(
                DecodedSchema(
                    name=name,
                    first=first,
                    type=kind["value"].dataType,
                    value=f.when(is_read, f.col(own)["value"]),
                    is_read=is_read,
                )
            )
        return read, schemas, problems

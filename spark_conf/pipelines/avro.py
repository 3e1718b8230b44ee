"""Shell: Avro by a schema registry, read by Spark's `from_avro` for each schema of a batch.

A value is decoded with the schema that it was written with, and a mark that is put after it: so a value that ends early
or late is not taken for another.
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
from spark_conf.pipelines.schema_evolution import Place
from spark_conf.pipelines.schema_names import PAYLOAD, DecodedSchema, SchemaName, asked_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARK: Final = b"kafka-ds"
_MARKED: Final = """{"type":"record","name":"KafkaDsMarked","fields":[{"name":"value","type":%s},
{"name":"mark","type":{"type":"fixed","name":"KafkaDsMark","size":8}}]}"""


class AvroReader:
    """Reads Avro by the schemas of a registry."""

    has_messages = False

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def read(
        self, framed: DataFrame, names: Sequence[tuple[SchemaName, Place]], column: str
    ) -> tuple[DataFrame, list[DecodedSchema], dict[SchemaName, str]]:
        """As in `SchemaReader`."""
        marked = framed.withColumn(PAYLOAD, f.concat(PAYLOAD, f.lit(_MARK)))
        schemas: list[DecodedSchema] = []
        problems: dict[SchemaName, str] = {}
        for place, (name, first) in enumerate(names):
            schema = asked_of(self._registry, name, "Avro")
            if isinstance(schema, str):
                problems[name] = schema
                continue
            try:
                text = with_references(schema.text, schema.references)
                value = from_avro(PAYLOAD, _MARKED % text, {"mode": "PERMISSIVE"})
                kind = marked.select(value.alias("each")).schema["each"].dataType
            except (ValueError, LookupError, PySparkException, Py4JError) as problem:
                why = str(problem).partition("\n")[0]
                problems[name] = f"schema {name} cannot be read: {why}"
                continue
            assert isinstance(kind, t.StructType)
            own = f"_{column}_{place}"
            marked = marked.withColumn(own, f.when(name.is_its(), value))
            is_read = f.col(own)["mark"] == f.lit(_MARK)
            schemas.append(
                DecodedSchema(
                    name=name,
                    first=first,
                    type=kind["value"].dataType,
                    value=f.when(is_read, f.col(own)["value"]),
                    is_read=is_read,
                )
            )
        return marked, schemas, problems
